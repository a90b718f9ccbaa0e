"""`keylane spark checkpoint`: another lane count for a query, where that is exact.

Exit codes: 0 can be done or was done, 1 refused, 2 bad input, 3 the storage failed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, get_args

import click

from keylane.assignor.range_plan import PLAN_BYTES_MAX, read_plan
from keylane.errors import KeylaneError
from keylane.keyrange.hash import HashName
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.arguments import conf_option, fail
from keylane.pipeline.checkpoint import (
    CheckpointRefused,
    Migration,
    apply_migration,
    plan_migration,
)
from keylane.pipeline.places import Places, open_places
from keylane.pipeline.storage import FOLDER
from keylane.usage import HELP_NAMES, expect_one

EXIT_REFUSED: Final = 1


@click.command(
    "checkpoint",
    context_settings=dict(HELP_NAMES),
    short_help="Let a query go on with another lane count, where that is exact.",
)
@click.argument("folder", type=FOLDER)
@click.option("--from", "source", required=True, metavar="TOPIC", help="As the query read it.")
@click.option("--to", "target", required=True, metavar="TOPIC", help="As it is to read it.")
@click.option(
    "--from-lanes",
    type=int,
    metavar="N",
    help="Equal lanes per partition (default: as the lane name says, else 1).",
)
@click.option("--from-plan", type=FOLDER, metavar="PLAN.JSON", help="Cut by a plan.")
@click.option(
    "--to-lanes",
    type=int,
    metavar="N",
    help="Equal lanes per partition (default: as the lane name says, else 1).",
)
@click.option("--to-plan", type=FOLDER, metavar="PLAN.JSON", help="Cut by a plan.")
@click.option(
    "--hash",
    type=click.Choice(get_args(HashName)),
    default="xxh64",
    show_default=True,
    help="Of equal lanes, as the topic's lane rule has it.",
)
@conf_option
@click.option("--write", is_flag=True, help="Do it; a copy is kept beside it.")
def checkpoint_command(**options: Any) -> int:
    """Rewrite the offsets of a stopped query's checkpoint for another lane count.

    FOLDER is the query's checkpointLocation, a path or a URI such as s3a://BUCKET/FOLDER. Shows
    what it would do; --write does it. What would lose or repeat a record is refused.
    """
    return run_checkpoint(SimpleNamespace(**options))


def run_checkpoint(args: SimpleNamespace) -> int:
    """Show the offsets before and after; with `--write` put them in place."""
    for side in ("from", "to"):
        flags = (f"--{side}-lanes", f"--{side}-plan")
        given = {flag: getattr(args, flag.strip("-").replace("-", "_")) for flag in flags}
        expect_one(given, is_needed=False)
    try:
        with open_places("keylane checkpoint", args.conf) as places:
            migrate(places, args)
    except CheckpointRefused as error:
        return fail("checkpoint", error, EXIT_REFUSED)
    except KeylaneError as error:
        return fail("checkpoint", error)
    return 0


def migrate(places: Places, args: SimpleNamespace) -> None:
    """Print the migration, and do it where `--write` is given. Raises: KeylaneError."""
    migration = plan_migration(
        places.folder(args.folder),
        args.source,
        args.target,
        from_layout=_layout(places, args.from_lanes, args.from_plan),
        to_layout=_layout(places, args.to_lanes, args.to_plan),
        key_hash=args.hash,
    )
    print(render(migration))
    if not args.write:
        print("nothing was written: --write does it, once the query is stopped")
        return
    backup = apply_migration(migration)
    print(f"{migration.log.path} is written, the old one is {backup}")
    print(f"start the query with subscribe={migration.to_topic}")


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


def _layout(places: Places, lanes: int | None, plan: str | None) -> LaneLayout | int | None:
    return lanes if plan is None else places.load(plan, read_plan, PLAN_BYTES_MAX).layout()
