"""`keylane describe`: a group's members and lanes, or the place of a key, from a control port.

Exit codes: 0 done, 1 failed (one line on stderr).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from threading import Event
from types import SimpleNamespace
from typing import Any, Final, NoReturn
from urllib.parse import quote

import click

from keylane.cli.columns import Painted, align, has_colors
from keylane.cli.control_client import ControlPort, control_options
from keylane.cli.figures import BAD, DASH, age, lag, lag_time, moment, whole
from keylane.cli.lists import SORTS, furthest_first, misplaced_lines, render_topics
from keylane.cli.output import output_option, show
from keylane.cli.share_tables import render_share
from keylane.errors import ConfigInvalid, ControlRefused
from keylane.usage import HELP_NAMES, expect_one

INTERVAL_S: Final = 2.0
MEMBER_COLUMNS: Final = ("MEMBER", "HOST", "LANES", "LAG", "BYTES/S", "GAINED", "LOST")
PACE_COLUMNS: Final = ("LAG-TIME", "DONE/S", "LAST-COMMIT", "STATE")
LANE_COLUMNS: Final = (
    "TOPIC", "LANE", "PARTITION", "COMMITTED", "LAST-COMMIT", "LOG-END", "LAG", "BYTES/S", "MEMBER",
)  # fmt: skip
OWNER_COLUMNS: Final = ("GROUP", "TOPIC", "LANE", "MEMBER", "CLIENT", "HOST")
MOVE_COLUMNS: Final = ("MOVED", "TOPIC", "LANE", "FROM", "TO", "REASON")
RANGE_COLUMNS: Final = ("TOPIC", "PARTITION", "STABLE-OFFSET", "KEYS", "DONE-ABOVE")
ALL_KEYS: Final = (0, 2**63 - 1)
MOVES_SHOWN: Final = 10


@click.command(
    "describe",
    context_settings=dict(HELP_NAMES),
    short_help="Members of a group with their lanes, or the place of a key.",
)
@control_options
@click.option("--group", metavar="NAME", help="A group: its members and their lanes.")
@click.option("--all-groups", is_flag=True, help="All groups, one after the other.")
@click.option("--record-key", metavar="TEXT", help="A key: its partition, lane and members.")
@click.option("--record-key-hex", metavar="BYTES", help="The same of a key that is no text.")
@click.option("--topics", is_flag=True, help="Topics with lanes.")
@click.option("--topic", metavar="NAME", help="Of the key; without it all topics with lanes.")
@click.option(
    "--ranges",
    is_flag=True,
    help="Of a group: stable offsets, and the ranges of offsets that are done above them.",
)
@click.option(
    "--sort",
    type=click.Choice(tuple(SORTS)),
    help="Order of groups, members and lanes; with lag or lag-s the furthest behind comes first.",
)
@click.option("--watch", is_flag=True, help="Ask again and again, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="Time between two questions of --watch.",
)
@output_option()
def describe_command(**options: Any) -> int:
    """Describe a group with its members and lanes, or the place of a key."""
    return run_describe(SimpleNamespace(**options))


def run_describe(args: SimpleNamespace) -> int:
    """Ask and print. Raises: ConfigInvalid, ControlRefused."""
    expect_one({
        "--group": args.group,
        "--all-groups": args.all_groups,
        "--record-key": args.record_key,
        "--record-key-hex": args.record_key_hex,
        "--topics": args.topics,
    })  # fmt: skip
    port = ControlPort.of(args)
    if args.watch:
        _watch(port, args)
    report, text = _ask(port, args)
    show(report, args.output, lambda: text)
    return 0


def _watch(port: ControlPort, args: SimpleNamespace) -> NoReturn:
    """Print until Ctrl-C; a node that does not answer is asked again."""
    is_table, pause = args.output == "table", Event()
    while True:
        try:
            report, text = _ask(port, args)
        except ControlRefused as error:
            if is_table:
                click.clear()
            print(f"keylane describe: {error}", file=sys.stderr, flush=True)
        else:
            if is_table:
                click.clear()  # nothing where stdout is no terminal
                text = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}  {port.address}\n{text}\n"
            elif args.output == "yaml":
                print("---")
            show(report, args.output, lambda text=text: text)  # type: ignore[misc]
            sys.stdout.flush()
        pause.wait(args.interval)


def _ask(port: ControlPort, args: SimpleNamespace) -> tuple[Any, str]:
    """Return the answer and its text. Raises: ConfigInvalid, ControlRefused."""
    make = render_ranges if args.ranges else render
    if args.group is not None:
        report = port.get(f"/groups/{quote(args.group, safe='')}")
        return _sort(report, args.sort), make(report)
    if args.all_groups:
        reports = _ask_all(port, args.sort)
        return reports, "\n\n".join(map(make, reports)) or "there are no groups"
    if args.topics:
        report = port.get("/topics")
        return report, render_topics(report)
    key = _key_of(args)
    topics = (
        [args.topic] if args.topic else [each["topic"] for each in port.get("/topics")["topics"]]
    )
    reports = [
        port.get(f"/topics/{quote(name, safe='')}/keys/{quote(key, safe='')}") for name in topics
    ]
    return reports, "\n\n".join(map(render_key, reports)) or "no topic has lanes; name a --topic"


def _ask_all(port: ControlPort, sort: str | None) -> list[Any]:
    """Return the reports of all groups; one that is gone meanwhile is left out.

    Raises: ControlRefused, of the last one, where none of them can be described.
    """
    groups = port.get("/groups")["groups"]
    groups.sort(key=SORTS[sort or "name"])
    reports: list[Any] = []
    for position, each in enumerate(groups, 1):
        try:
            report = port.get(f"/groups/{quote(each['group'], safe='')}")
        except ControlRefused as error:
            if position == len(groups) and not reports:
                raise
            print(f"keylane describe: {error}", file=sys.stderr)
            continue
        reports.append(_sort(report, sort))
    return reports


def _sort(report: Any, sort: str | None) -> Any:
    """Sort members and lanes in place, where an order is asked for; return the report."""
    if sort is None:
        return report
    if sort == "name":
        names = _names(report)
        report["members"].sort(key=lambda each: names[each["member_id"]])
    else:
        field = sort.replace("-", "_")
        for part in ("members", "lanes"):
            report[part].sort(key=lambda each: furthest_first(each, field))
    return report


def _key_of(args: SimpleNamespace) -> bytes:
    """Return the key. Raises: ConfigInvalid, which does not show it."""
    if args.record_key is not None:
        key = os.fsencode(args.record_key)
    else:
        try:
            key = bytes.fromhex(args.record_key_hex)
        except ValueError:
            raise ConfigInvalid("--record-key-hex: expected pairs of hexadecimal digits") from None
    if not key:
        raise ConfigInvalid("--record-key: an empty key cannot be asked for")
    return key


def render(report: Mapping[str, Any]) -> str:
    """Return the report as text: a line about the group, its members, its lanes or partitions."""
    if report.get("share") is not None:  # older nodes do not describe share groups
        return render_share(report)
    names = _names(report)
    estimated = {lane["member_id"] for lane in report["lanes"] if not lane["lag_is_exact"]}
    has_pace = all("is_stuck" in member for member in report["members"])  # older nodes have none
    columns = MEMBER_COLUMNS + (PACE_COLUMNS if has_pace else ())
    members = [
        _member_row(member, names, estimated) + (_pace_cells(member) if has_pace else ())
        for member in report["members"]
    ]
    lanes = [_lane_row(lane, names) for lane in report["lanes"]]
    moves = [_move_row(move, names) for move in report.get("moves", ())[:MOVES_SHOWN]]
    colors = has_colors()
    tables = [align([columns, *members], is_colored=colors)] if members else []
    tables += [align([LANE_COLUMNS, *lanes], is_colored=colors)] if lanes else []
    tables += [align([MOVE_COLUMNS, *moves])] if moves else []
    lines = [line for table in tables for line in ("", *table)]
    refusal = report.get("refusal")  # older nodes have none
    refused = [f"refused: {refusal}"] if refusal else []
    direct = [names[one["member_id"]] for one in report["members"] if one.get("bypasses_keylane")]
    if direct:
        refused.append(f"partitions stay whole: these members bypass keylane: {', '.join(direct)}")
    return "\n".join([_head(report), *refused, *lines, *misplaced_lines(report["misplaced"])])


def _names(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of members by their ids: the instance, else the client."""
    return {
        member["member_id"]: member["instance_id"] or member["client_id"] or member["member_id"]
        for member in report["members"]
    }


def _head(report: Mapping[str, Any]) -> str:
    generation, balance = report["generation_id"], report.get("balance")
    return (
        f"group {report['group']}: {report['state']}, assignor {report['assignor'] or '-'}, "
        + (f"generation {generation}, " if generation is not None else "")
        + f"{len(report['members'])} members, {len(report['lanes'])} lanes"
        + (f", balance {balance['busiest']:.2f}" if balance else "")
    )


def render_ranges(report: Mapping[str, Any]) -> str:
    """Return a group's stable offsets and ranges as text, one line for each key range."""
    rows = []
    for each in report.get("progress", ()):  # older nodes have none
        of_keys: dict[str, list[str]] = {}
        for found in each["ranges"]:
            lo, hi = found["key_range"]
            keys = "all" if (lo, hi) == ALL_KEYS else f"{lo:016x}-{hi:016x}"
            of_keys.setdefault(keys, []).append(f"{found['first']}-{found['last']}")
        left = each["range_count"] - len(each["ranges"])
        more = [f"and {left} more"] if left else []
        place = (each["topic"], str(each["partition"]), str(each["stable_offset"]))
        for keys, ranges in (of_keys or {"-": ["-"]}).items():
            rows.append((*place, keys, " ".join([*ranges, *more])))
    head = f"group {report['group']}: {report['state']}, {len(rows)} partitions or key ranges"
    return "\n".join([head, "", *align([RANGE_COLUMNS, *rows])] if rows else [head])


def render_key(report: Mapping[str, Any]) -> str:
    """Return the place of a key as text; the key itself is not in it."""
    lane = "no lane"
    if report["lane"] is not None:
        lane = f"lane {report['lane']}, lane index {report['lane_index']}"
    head = (
        f"topic {report['topic']}: partition {report['partition']} of "
        f"{report['partition_count']} by Kafka's default partitioner "
        f"(hash {report['partitioner_hash']}), {lane} by {report['hash']} "
        f"(point {report['point']})"
    )
    rows = [
        (
            each["group"],
            each["topic"],
            str(each["lane_index"]),
            each["member_id"] or "-",
            each["client_id"] or "-",
            each["host"] or "-",
        )
        for each in report["groups"]
    ]
    lines = [head, *(("", *align([OWNER_COLUMNS, *rows])) if rows else ())]
    if report["groups_left_out"]:
        lines.append(f"{report['groups_left_out']} more groups were not asked")
    return "\n".join(lines)


def _member_row(
    member: Mapping[str, Any], names: Mapping[str, str], estimated: Collection[str]
) -> tuple[str, ...]:
    return (
        names[member["member_id"]],
        member["host"],
        str(member["lane_count"]),
        lag(member["lag"], is_exact=member["member_id"] not in estimated),
        whole(member["bytes_per_s"]),
        _count(member["lanes_gained"]),
        _count(member["lanes_lost"]),
    )


def _lane_row(lane: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        lane["topic"],
        str(lane["lane_index"]),
        str(lane["partition"]),
        whole(lane["committed"]),
        moment(lane["committed_ms"]),
        str(lane["log_end"]),
        lag(lane["lag"], is_exact=lane["lag_is_exact"]),
        whole(lane["bytes_per_s"]),
        names.get(lane["member_id"], "-"),
    )


def _move_row(move: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        moment(move["at_ms"]),
        move["topic"],
        str(move["lane_index"]),
        names.get(move["from_member"], move["from_member"]),
        names.get(move["to_member"], move["to_member"]),
        move["reason"],
    )


def _pace_cells(member: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the member does, beside what flows in."""
    return (
        lag_time(member["lag_s"], is_exact=member["lag_s_is_exact"]),
        whole(member["consumed_per_s"]),
        moment(member["last_commit_ms"]),
        Painted(f"stuck {age(member['stuck_s'])}", BAD) if member["is_stuck"] else DASH,
    )


def _count(lanes: Sequence[object] | None) -> str:
    return DASH if lanes is None else str(len(lanes))
