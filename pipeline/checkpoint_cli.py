"""`keylane spark checkpoint`: another lane count for a query, where that is exact.

Exit codes: 0 can be done or was done, 1 refused, 2 bad input.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final, get_args

from keylane.assignor.range_plan import PLAN_BYTES_MAX, read_plan
from keylane.errors import KeylaneError
from keylane.files import load_file
from keylane.keyrange.hash import HashName
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.arguments import fail
from keylane.pipeline.checkpoint import (
    CheckpointRefused,
    Migration,
    apply_migration,
    plan_migration,
)

EXIT_REFUSED: Final = 1


def add_checkpoint_command(jobs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `checkpoint` to the jobs of `keylane spark`."""
    parser = jobs.add_parser(
        "checkpoint",
        help="let a query go on with another lane count, where that is exact",
        description="Rewrite the offsets of a stopped query's checkpoint for another lane count."
        " Shows what it would do; --write does it. What would lose or repeat a record is refused.",
    )
    parser.add_argument("folder", type=Path, help="the query's checkpointLocation")
    parser.add_argument("--from", dest="source", required=True, metavar="TOPIC")
    parser.add_argument("--to", dest="target", required=True, metavar="TOPIC")
    for side in ("from", "to"):
        lanes = parser.add_mutually_exclusive_group()
        lanes.add_argument(
            f"--{side}-lanes",
            type=int,
            metavar="N",
            help="equal lanes per partition (default: as the lane name says, else 1)",
        )
        lanes.add_argument(f"--{side}-plan", type=Path, metavar="PLAN.JSON", help="cut by a plan")
    parser.add_argument(
        "--hash",
        choices=get_args(HashName),
        default="xxh64",
        help="of equal lanes, as the topic's lane rule has it (default: %(default)s)",
    )
    parser.add_argument("--write", action="store_true", help="do it; a copy is kept beside it")
    parser.set_defaults(run=run_checkpoint)


def run_checkpoint(args: argparse.Namespace) -> int:
    """Show the offsets before and after; with `--write` put them in place."""
    try:
        migration = plan_migration(
            args.folder,
            args.source,
            args.target,
            from_layout=_layout(args.from_lanes, args.from_plan),
            to_layout=_layout(args.to_lanes, args.to_plan),
            key_hash=args.hash,
        )
        print(render(migration))
        if not args.write:
            print("nothing was written: --write does it, once the query is stopped")
            return 0
        backup = apply_migration(migration)
    except CheckpointRefused as error:
        return fail("checkpoint", error, EXIT_REFUSED)
    except (KeylaneError, OSError, ValueError) as error:
        return fail("checkpoint", error)
    print(f"{migration.log.path} is written, the old one is {backup}")
    print(f"start the query with subscribe={migration.to_topic}")
    return 0


def render(migration: Migration) -> str:
    """The migration as text: a line per partition."""
    before, after = migration.from_layout, migration.to_layout
    head = (
        f"batch {migration.log.batch}: {migration.from_topic} ({before.lane_count} lanes of"
        f" {before.partition_count} partitions) to {migration.to_topic} ({after.lane_count} lanes)"
    )
    lines = [head]
    for partition in range(before.partition_count):
        old, new = (
            [offsets[layout.lane_index(partition, lane)] for lane in range(layout.lane_count)]
            for offsets, layout in ((migration.old_offsets, before), (migration.offsets, after))
        )
        lines.append(f"partition {partition}: {_spell(old)} -> {_spell(new)}")
    return "\n".join(lines)


def _spell(offsets: list[int]) -> str:
    if len(set(offsets)) == 1:
        return f"all {len(offsets)} lanes at {offsets[0]}"
    return " ".join(map(str, offsets))


def _layout(lanes: int | None, plan_path: Path | None) -> LaneLayout | int | None:
    if plan_path is None:
        return lanes
    return load_file(plan_path, read_plan, PLAN_BYTES_MAX).layout()
