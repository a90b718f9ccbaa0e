"""`keylane rebalance`, `reset-offsets` and `drain`: actions, each with a preview.

Source: docs/control-api.md; the options of `kafka-consumer-groups --reset-offsets` (KIP-122).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import quote

import click

from keylane.cli.columns import align
from keylane.cli.control_client import ControlPort, control_options
from keylane.cli.figures import DASH, whole
from keylane.cli.output import output_option, show
from keylane.usage import HELP_NAMES, expect_one, is_given

MOVE_COLUMNS: Final = ("TOPIC", "LANE", "FROM", "TO", "BYTES/S")
RESET_COLUMNS: Final = ("TOPIC", "PARTITION", "LANES", "FROM", "TO", "AGAIN", "SKIPPED")
DRAIN_COLUMNS: Final = ("NODE", "STATE", "PARTITIONS", "GROUPS", "CONNECTIONS")
PREVIEW: Final = "nothing was changed: --execute does it"
RESETS: Final[Mapping[str, str]] = {
    "to_earliest": "earliest",
    "to_latest": "latest",
    "to_current": "current",
    "to_offset": "offset",
    "shift_by": "shift-by",
    "to_datetime": "datetime",
    "by_duration": "duration",
}
"""The option, and the control port's word for it."""


def dry_run_options(command: Any) -> Any:
    """Add `--dry-run`, which is the default, and `--execute`."""
    execute = click.option("--execute", is_flag=True, help="Do it.")
    dry_run = click.option(
        "--dry-run", is_flag=True, help="Show what it would do, and change nothing: the default."
    )
    return dry_run(execute(command))


@click.command(
    "rebalance",
    context_settings=dict(HELP_NAMES),
    short_help="Deal out the lanes of a group anew, by their load.",
)
@click.option("--group", required=True, metavar="NAME", help="The group.")
@dry_run_options
@output_option()
@control_options
def rebalance_command(**options: Any) -> int:
    """Deal out the lanes of a group anew, by their load.

    Shows the moves that it would make; --execute asks the group to make them.
    """
    args = SimpleNamespace(**options)
    expect_one({"--dry-run": args.dry_run, "--execute": args.execute}, is_needed=False)
    path = f"/groups/{quote(args.group, safe='')}/rebalance"
    report = ControlPort.of(args).send("POST", path, is_dry=not args.execute)
    show(report, args.output, lambda: render_rebalance(args.group, report))
    return 0 if report["is_asked"] or report["dry_run"] else 1


@click.command(
    "reset-offsets",
    context_settings=dict(HELP_NAMES),
    short_help="Set the offsets of a group without members, with a dry run.",
)
@click.option("--group", required=True, metavar="NAME", help="The group; it has no members now.")
@click.option(
    "--topic",
    multiple=True,
    metavar="NAME[:P,P]",
    help="A topic, or some of its partitions; may be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All topics of which the group has offsets.")
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option(
    "--to-current", is_flag=True, help="To where the group is: what is done ahead of it is undone."
)
@click.option("--to-offset", type=click.IntRange(0), metavar="OFFSET", help="To this offset.")
@click.option(
    "--shift-by", type=int, metavar="N", help="On by N records, or back by N where it is negative."
)
@click.option(
    "--to-datetime",
    metavar="TIME",
    help="To the first record of this time or later: 2026-11-21T08:00:00.000, in UTC.",
)
@click.option(
    "--by-duration", metavar="PnDTnHnMnS", help="To a time span before now: PT1H30M, P2D."
)
@dry_run_options
@output_option()
@control_options
def reset_offsets_command(**options: Any) -> int:
    """Set the offsets of a group that has no members, as kafka-consumer-groups does.

    All lanes of a partition go to one offset. Shows what it would do; --execute does it.
    """
    args = SimpleNamespace(**options)
    expect_one({"--dry-run": args.dry_run, "--execute": args.execute}, is_needed=False)
    expect_one({"--topic": args.topic, "--all-topics": args.all_topics})
    body = {"topics": read_topics(args.topic) or None, **_target(args)}
    path = f"/groups/{quote(args.group, safe='')}/reset-offsets"
    report = ControlPort.of(args).send("POST", path, body, is_dry=not args.execute)
    show(report, args.output, lambda: render_reset(args.group, report))
    return 0


@click.command(
    "drain",
    context_settings=dict(HELP_NAMES),
    short_help="Hand the groups of a node to the others, before it is stopped.",
)
@click.option(
    "--node", type=click.IntRange(0), required=True, metavar="N", help="Number of the node."
)
@click.option("--undo", is_flag=True, help="Let it serve again.")
@click.option("--dry-run", is_flag=True, help="Show what it would do, and change nothing.")
@output_option()
@control_options
def drain_command(**options: Any) -> int:
    """Hand the groups of a node to the other nodes, so that it can be stopped."""
    args = SimpleNamespace(**options)
    path, method = f"/nodes/{args.node}/drain", "DELETE" if args.undo else "POST"
    report = ControlPort.of(args).send(method, path, is_dry=args.dry_run)
    show(report, args.output, lambda: render_drain(report))
    return 0


def read_topics(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Read `orders` and `orders:0,3`, as kafka-consumer-groups has them. Raises: UsageError."""
    found: dict[str, dict[str, Any]] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        partitions = numbers.split(",") if colon else None
        if not topic or (partitions and not all(map(str.isdecimal, partitions))):
            raise click.UsageError(f"--topic {text}: expected NAME or NAME:PARTITION,PARTITION")
        if topic in found:
            raise click.UsageError(f"--topic {text}: the topic is named twice")
        whole_topic = partitions is None
        found[topic] = {
            "topic": topic,
            "partitions": None if whole_topic else sorted({int(one) for one in partitions or ()}),
        }
    return list(found.values())


def render_rebalance(group: str, report: Mapping[str, Any]) -> str:
    """Return a rebalance, or what it would be, as text."""
    moves = report["moves"]
    head = (
        f"group {group}: balance {_balance(report['balance'])}, after it "
        f"{_balance(report['balance_after'])} (busiest member / mean), {len(moves)} lanes move"
    )
    rows = [
        (
            each["topic"],
            str(each["lane_index"]),
            each["from_member"] or DASH,
            each["to_member"] or DASH,
            whole(each["bytes_per_s"]),
        )
        for each in moves
    ]
    lines = ["", *align([MOVE_COLUMNS, *rows]), ""] if rows else []
    if report["reason"] is not None:
        end = f"nothing moves: {report['reason']}"
    else:
        end = PREVIEW if report["dry_run"] else "the group was asked to rebalance"
    return "\n".join([head, *lines, end])


def render_reset(group: str, report: Mapping[str, Any]) -> str:
    """Return a reset, or what it would be, as text."""
    rows = [
        (
            each["topic"],
            str(each["partition"]),
            whole(each["lanes"]),
            whole(each["from_offset"]),
            whole(each["to_offset"]),
            whole(each["offsets_again"]),
            whole(each["offsets_skipped"]),
        )
        for each in report["partitions"]
    ]
    end = PREVIEW if report["dry_run"] else f"the offsets of group {group} are set"
    return "\n".join([*align([RESET_COLUMNS, *rows]), "", end])


def render_drain(report: Mapping[str, Any]) -> str:
    """Return a drained node, or what it would be, as text."""
    row = (
        str(report["node"]),
        report["state"],
        str(report["partitions"]),
        ", ".join(report["groups"]) or DASH,
        str(report["connections"]),
    )
    lines = list(align([DRAIN_COLUMNS, row]))
    if report["dry_run"]:
        lines += ["", "nothing was changed: without --dry-run it is done"]
    return "\n".join(lines)


def _target(args: SimpleNamespace) -> dict[str, Any]:
    """Return `to` and `value` of the body. Raises: UsageError."""
    values = {key: getattr(args, key) for key in RESETS}
    expect_one({f"--{key.replace('_', '-')}": value for key, value in values.items()})
    key = next(key for key, value in values.items() if is_given(value))
    if key == "to_datetime":
        _expect_time(args.to_datetime)
    value = values[key]
    return {"to": RESETS[key], "value": None if value is True else value}


def _expect_time(text: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--to-datetime {text}: expected a time such as 2026-11-21T08:00:00.000"
        ) from None


def _balance(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"
