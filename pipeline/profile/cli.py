"""`keylane spark profile`: what the keys of a topic weigh, once or as it grows.

Exit codes: 0 done, 2 bad input, 3 Spark or its storage failed (one line on stderr).
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from keylane.assignor.cut_planner import plan_ranges
from keylane.assignor.range_plan import RangePlan
from keylane.embedded.resolve import print_progress
from keylane.errors import ConfigInvalid, KeylaneError
from keylane.pipeline.arguments import (
    fail,
    kafka_options,
    load_plan,
    out_option,
    range_options,
    read_pairs,
    spark_options,
    start_session,
)
from keylane.pipeline.profile.hour_index import read_zone
from keylane.pipeline.storage import FOLDER, Folder, open_folder
from keylane.usage import FILE, HELP_NAMES, expect_one

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylane.assignor.profile import LoadProfile
    from keylane.pipeline.topic_range import TopicRange

LANES_DRAWN: Final = 16
UTC: Final = "UTC"


@click.command(
    "profile", context_settings=dict(HELP_NAMES), short_help="What the keys of a topic weigh."
)
@kafka_options
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@out_option
@range_options
@click.option("--heavy", type=int, default=20, metavar="N", help="How many heavy keys.")
@click.option("--show-keys", is_flag=True, help="Write the heavy keys themselves, not only hashes.")
@click.option("--headers", is_flag=True, help="Count the bytes of headers, too.")
@click.option(
    "--lanes",
    type=int,
    metavar="N",
    help=f"Draw the best cut into N ({LANES_DRAWN} when left out).",
)
@click.option("--plan", type=FILE, metavar="PLAN.JSON", help="Draw this plan.")
@click.option("--by-hour", is_flag=True, help="Load by hour, too, and plans for load that moves.")
@click.option("--zone", metavar="NAME", help="Time zone of hours and days (UTC when left out).")
@click.option("--follow", is_flag=True, help="Go on with what is produced: a rolling profile.")
@click.option(
    "--checkpoint", type=FOLDER, metavar="DIR", help="Where --follow goes on from; may be a URI."
)
@click.option(
    "--slice",
    type=int,
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Time between two slices of a rolling profile.",
)
@click.option(
    "--slices",
    type=int,
    default=6,
    show_default=True,
    metavar="N",
    help="How many slices make up the rolling profile.",
)
@click.option("--until-caught-up", is_flag=True, help="End --follow once all there is was counted.")
@spark_options
def profile_command(**options: Any) -> int:
    """Count records and bytes over the hash space, and find the heaviest keys.

    Writes profile.json (for `keylane plan`), Parquet files and a picture.
    """
    args = SimpleNamespace(**options)
    expect_one({"--lanes": args.lanes, "--plan": args.plan}, is_needed=False)
    args.lanes = LANES_DRAWN if args.lanes is None else args.lanes
    return run_profile_command(args)


def run_profile_command(args: SimpleNamespace) -> int:
    """Profile, and write what was found."""
    try:
        _check(args)
        options = read_pairs("--option", args.option)
        plan = None if args.plan is None else load_plan(args.plan, args.topic)
        name = f"keylane profile {args.topic}"
        with start_session(name, master=args.master, conf=args.conf) as spark:
            _run(args, spark, plan, options)
    except (KeylaneError, OSError) as error:
        return fail("profile", error)
    return 0


def _run(
    args: SimpleNamespace, spark: SparkSession, plan: RangePlan | None, options: dict[str, str]
) -> None:
    # Late: they need pyspark, and a session says so where it is missing.
    from keylane.pipeline.profile.loads import run_profile
    from keylane.pipeline.topic_range import find_range

    folder = open_folder(args.out, spark)
    chosen = find_range(
        spark,
        args.bootstrap,
        args.topic,
        start=args.start,
        end=args.end,
        options=options,
        may_be="empty" if args.follow else None,
    )
    if plan is not None and plan.partition_count != chosen.partition_count:
        raise ConfigInvalid(
            f"--plan {args.plan}: has {plan.partition_count} partitions,"
            f" topic {args.topic} has {chosen.partition_count}"
        )
    if args.follow:
        with contextlib.suppress(KeyboardInterrupt):  # the way in which it is meant to end
            _follow(args, spark, chosen, folder, plan)
        return
    profile = run_profile(
        spark,
        chosen,
        heavy_count=args.heavy,
        show_keys=args.show_keys,
        headers=args.headers,
        progress=print_progress,
    )
    text = _by_hour(args, spark, chosen, folder, profile, plan) if args.by_hour else None
    _write(args, folder, profile, plan)
    if text is not None:
        print(text, flush=True)


def _follow(
    args: SimpleNamespace,
    spark: SparkSession,
    chosen: TopicRange,
    folder: Folder,
    plan: RangePlan | None,
) -> None:
    from keylane.pipeline.profile.rolling import SLICES_FOLDER, SliceStore, run_rolling

    store = SliceStore(
        folder=folder.child(SLICES_FOLDER),
        topic=args.topic,
        topic_id=chosen.topic_id,
        slice_s=args.slice,
        slice_count=args.slices,
    )
    run_rolling(
        spark,
        chosen,
        store,
        start=args.start,
        checkpoint=open_folder(args.checkpoint, spark),
        until_caught_up=args.until_caught_up,
        write=lambda profile: _write(args, folder, profile, plan),
    )


def _by_hour(
    args: SimpleNamespace,
    spark: SparkSession,
    chosen: TopicRange,
    folder: Folder,
    profile: LoadProfile,
    plan: RangePlan | None,
) -> str:
    """Read the range once more, write what stands by hour; return it as text."""
    from keylane.pipeline.job import spark_errors, tracked
    from keylane.pipeline.profile.hours import hour_loads, judge_hours, kept_hours
    from keylane.pipeline.profile.loads import open_range
    from keylane.pipeline.profile.worth import describe_hours

    if profile.records == 0:  # all were aborted or compacted
        return "by hour: no records"
    what = f"profile {chosen.topic} by hour"
    zone = args.zone or UTC
    records = open_range(spark, chosen, headers=args.headers)
    sums = hour_loads(records, zone=zone, headers=args.headers)
    with (
        spark_errors(what),
        tracked(spark, what, print_progress),
        kept_hours(sums, zone) as (index, kept),
    ):
        lane_count = args.lanes if plan is None else plan.lane_count
        others = {} if plan is None else {args.plan.name: plan}
        report = judge_hours(kept, index, profile, folder, lane_count=lane_count, others=others)
    return describe_hours(report, index)


def _check(args: SimpleNamespace) -> None:
    if args.follow and args.checkpoint is None:
        raise ConfigInvalid("--follow: needs --checkpoint")
    if args.follow and (args.show_keys or args.headers or args.by_hour):
        raise ConfigInvalid("--follow: counts buckets of all records, without keys, headers, hours")
    if args.follow and args.end != "latest":
        raise ConfigInvalid("--follow: has no end, --to is for a range")
    if args.zone is not None and not args.by_hour:
        raise ConfigInvalid("--zone: is for --by-hour")
    for flag in ("heavy", "slice", "slices", "lanes"):
        if getattr(args, flag) < 1:
            raise ConfigInvalid(f"--{flag}: expected 1 or more")
    if args.zone is not None:
        read_zone(args.zone)


def _write(
    args: SimpleNamespace, folder: Folder, profile: LoadProfile, plan: RangePlan | None
) -> None:
    from keylane.pipeline.profile.files import save_pictures, save_profile
    from keylane.pipeline.profile.loads import describe
    from keylane.pipeline.profile.picture import draw_load

    if plan is None:
        plan, _ = plan_ranges(profile, args.lanes)
    save_profile(profile, folder)
    save_pictures({"load": draw_load(profile, plan)}, folder)
    print(describe(profile), flush=True)
