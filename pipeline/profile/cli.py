"""`keylane spark profile`: what the keys of a topic weigh, once or as it grows.

Exit codes: 0 done, 2 bad input, 3 Spark failed (one line on stderr).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from keylane.assignor.cut_planner import plan_ranges
from keylane.assignor.range_plan import PLAN_BYTES_MAX, RangePlan, read_plan
from keylane.embedded.resolve import print_progress
from keylane.errors import ConfigInvalid, KeylaneError
from keylane.files import load_file
from keylane.pipeline.arguments import (
    fail,
    kafka_options,
    read_pairs,
    spark_options,
    start_session,
)
from keylane.usage import FILE, HELP_NAMES, expect_one

if TYPE_CHECKING:
    from keylane.assignor.profile import LoadProfile

LANES_DRAWN: Final = 16
PLACE: Final = "Earliest, latest, a time (2026-11-21T08:00:00Z) or offsets (0:100,1:250)."


@click.command(
    "profile", context_settings=dict(HELP_NAMES), short_help="What the keys of a topic weigh."
)
@kafka_options
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option("--out", type=FILE, required=True, metavar="DIR", help="Folder for what is written.")
@click.option("--from", "start", default="earliest", metavar="PLACE", help=PLACE)
@click.option("--to", "end", default="latest", metavar="PLACE", help="The same; exclusive.")
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
@click.option("--follow", is_flag=True, help="Go on with what is produced: a rolling profile.")
@click.option("--checkpoint", type=FILE, metavar="DIR", help="Where --follow goes on from.")
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
        plan = None if args.plan is None else _load_plan(args.plan, args.topic)
        name = f"keylane profile {args.topic}"
        with start_session(name, master=args.master, conf=args.conf) as spark:
            # Late: they need pyspark, and a session says so where it is missing.
            from keylane.pipeline.profile.loads import run_profile
            from keylane.pipeline.profile.rolling import SliceStore, run_rolling
            from keylane.pipeline.topic_range import find_range

            chosen = find_range(
                spark, args.bootstrap, args.topic, start=args.start, end=args.end, options=options
            )
            if plan is not None and plan.partition_count != chosen.partition_count:
                raise ConfigInvalid(
                    f"--plan {args.plan}: has {plan.partition_count} partitions,"
                    f" topic {args.topic} has {chosen.partition_count}"
                )
            if args.follow:
                with contextlib.suppress(KeyboardInterrupt):
                    run_rolling(
                        spark,
                        chosen,
                        SliceStore(args.out, slice_s=args.slice, slice_count=args.slices),
                        checkpoint=args.checkpoint,
                        until_caught_up=args.until_caught_up,
                        write=lambda profile: _write(args, profile, plan),
                    )
                return 0
            profile = run_profile(
                spark,
                chosen,
                heavy_count=args.heavy,
                show_keys=args.show_keys,
                headers=args.headers,
                progress=print_progress,
            )
        _write(args, profile, plan)
    except (KeylaneError, OSError) as error:
        return fail("profile", error)
    return 0


def _check(args: SimpleNamespace) -> None:
    if args.follow and args.checkpoint is None:
        raise ConfigInvalid("--follow: needs --checkpoint")
    if args.follow and (args.show_keys or args.headers or args.start != "earliest"):
        raise ConfigInvalid("--follow: counts buckets of all records, from the earliest on")
    for flag in ("heavy", "slice", "slices", "lanes"):
        if getattr(args, flag) < 1:
            raise ConfigInvalid(f"--{flag}: expected 1 or more")


def _write(args: SimpleNamespace, profile: LoadProfile, plan: RangePlan | None) -> None:
    from keylane.pipeline.profile.loads import describe, save_profile
    from keylane.pipeline.profile.picture import draw_load, save_picture

    if plan is None:
        plan, _ = plan_ranges(profile, args.lanes)
    save_profile(profile, args.out)
    save_picture(draw_load(profile, plan), args.out)
    print(describe(profile), flush=True)


def _load_plan(path: Path, topic: str) -> RangePlan:
    try:
        plan = load_file(path, read_plan, PLAN_BYTES_MAX)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"--plan {error}") from None
    if plan.topic != topic:
        raise ConfigInvalid(f"--plan {path}: is of topic {plan.topic}, not {topic}")
    return plan
