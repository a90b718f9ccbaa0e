"""`keylane spark profile`: what the keys of a topic weigh, once or as it grows.

Exit codes: 0 done, 2 bad input or Spark failed (one line on stderr).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from keylane.assignor.cut_planner import plan_ranges
from keylane.assignor.range_plan import PLAN_BYTES_MAX, RangePlan, read_plan
from keylane.embedded.resolve import print_progress
from keylane.errors import ConfigInvalid, KeylaneError
from keylane.files import load_file
from keylane.pipeline.arguments import (
    add_kafka_arguments,
    add_spark_arguments,
    fail,
    read_pairs,
    start_session,
)

if TYPE_CHECKING:
    from keylane.assignor.profile import LoadProfile

LANES_DRAWN: Final = 16


def add_profile_command(jobs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `profile` to the jobs of `keylane spark`."""
    parser = jobs.add_parser(
        "profile",
        help="what the keys of a topic weigh",
        description="Count records and bytes over the hash space, and find the heaviest keys."
        " Writes profile.json (for `keylane plan`), Parquet files and a picture.",
    )
    add_kafka_arguments(parser)
    parser.add_argument("--topic", required=True, metavar="NAME")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    place = "earliest, latest, a time (2026-11-21T08:00:00Z) or offsets (0:100,1:250)"
    parser.add_argument("--from", dest="start", default="earliest", metavar="PLACE", help=place)
    parser.add_argument(
        "--to", dest="end", default="latest", metavar="PLACE", help="same; exclusive"
    )
    parser.add_argument("--heavy", type=int, default=20, metavar="N", help="how many heavy keys")
    parser.add_argument(
        "--show-keys", action="store_true", help="write the heavy keys themselves, not only hashes"
    )
    parser.add_argument("--headers", action="store_true", help="count the bytes of headers, too")
    drawn = parser.add_mutually_exclusive_group()
    drawn.add_argument(
        "--lanes", type=int, default=LANES_DRAWN, metavar="N", help="draw the best cut into N"
    )
    drawn.add_argument("--plan", type=Path, metavar="PLAN.JSON", help="draw this plan")
    follow = parser.add_argument_group("a rolling profile, until it is ended")
    follow.add_argument("--follow", action="store_true", help="go on with what is produced")
    follow.add_argument("--checkpoint", type=Path, metavar="DIR", help="where to go on from")
    follow.add_argument(
        "--slice", type=int, default=600, metavar="SECONDS", help="(default: %(default)s)"
    )
    follow.add_argument(
        "--slices", type=int, default=6, metavar="N", help="how many make up the profile"
    )
    follow.add_argument(
        "--until-caught-up", action="store_true", help="end once all there is was counted"
    )
    add_spark_arguments(parser)
    parser.set_defaults(run=run_profile_command)


def run_profile_command(args: argparse.Namespace) -> int:
    """Profile, and write what was found."""
    try:
        _check(args)
        options = read_pairs("--option", args.option)
        plan = None if args.plan is None else _load_plan(args.plan, args.topic)
        with start_session(f"keylane profile {args.topic}", args) as spark:
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
    except KeyboardInterrupt:
        return 0
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.follow and args.checkpoint is None:
        raise ConfigInvalid("--follow: needs --checkpoint")
    if args.follow and (args.show_keys or args.headers or args.start != "earliest"):
        raise ConfigInvalid("--follow: counts buckets of all records, from the earliest on")
    for flag in ("heavy", "slice", "slices", "lanes"):
        if getattr(args, flag) < 1:
            raise ConfigInvalid(f"--{flag}: expected 1 or more")


def _write(args: argparse.Namespace, profile: LoadProfile, plan: RangePlan | None) -> None:
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
