"""`keylane describe`: a group's members and lanes, or the place of a key, from a control port.

Exit codes: 0 done, 1 failed (one line on stderr).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from keylane.cli.columns import align
from keylane.cli.control_client import (
    ControlTrust,
    add_trust_arguments,
    ask_control,
    control_request,
)
from keylane.cli.share_tables import render_share
from keylane.errors import ConfigInvalid, ControlRefused

TIMEOUT_S: Final = 30.0
MEMBER_COLUMNS: Final = ("MEMBER", "HOST", "LANES", "LAG", "BYTES/S", "GAINED", "LOST")
LANE_COLUMNS: Final = (
    "TOPIC", "LANE", "PARTITION", "COMMITTED", "LAST-COMMIT", "LOG-END", "LAG", "BYTES/S", "MEMBER",
)  # fmt: skip
TOPIC_COLUMNS: Final = ("TOPIC", "PARTITIONS", "LANES", "HASH")
OWNER_COLUMNS: Final = ("GROUP", "TOPIC", "LANE", "MEMBER", "CLIENT", "HOST")
MOVE_COLUMNS: Final = ("MOVED", "TOPIC", "LANE", "FROM", "TO", "REASON")
RANGE_COLUMNS: Final = ("TOPIC", "PARTITION", "STABLE-OFFSET", "KEYS", "DONE-ABOVE")
ALL_KEYS: Final = (0, 2**63 - 1)
MOVES_SHOWN: Final = 10
ESTIMATE: Final = "~"
"""Stands before a lag that is an estimate."""


def add_describe_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `describe`."""
    parser = commands.add_parser(
        "describe", help="members of a group with their lanes, or the place of a key"
    )
    parser.add_argument("--control", required=True, metavar="HOST:PORT", help="a control port")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--group", metavar="NAME")
    asked.add_argument("--record-key", metavar="TEXT", help="partition, lane and members of a key")
    asked.add_argument(
        "--record-key-hex", metavar="BYTES", help="the same of a key that is no text"
    )
    asked.add_argument("--topics", action="store_true", help="topics with lanes")
    parser.add_argument(
        "--topic", metavar="NAME", help="of the key; without it all topics with lanes"
    )
    parser.add_argument(
        "--ranges",
        action="store_true",
        help="of a group: stable offsets, and the ranges of offsets that are done above them",
    )
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    add_trust_arguments(parser)
    parser.set_defaults(run=run_describe)


def run_describe(args: argparse.Namespace) -> int:
    """Ask and print."""
    try:
        report, text = _ask(args)
    except (ConfigInvalid, ControlRefused) as error:
        print(f"keylane describe: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2) if args.output == "json" else text)
    return 0


def _ask(args: argparse.Namespace) -> tuple[Any, str]:
    """Return the answer and its text. Raises: ConfigInvalid, ControlRefused."""
    trust = ControlTrust.of(args)

    def get(path: str) -> Any:
        request = control_request(args.control, path)
        return ask_control(request, trust, timeout_s=TIMEOUT_S)[1]

    if args.group is not None:
        report = get(f"/groups/{quote(args.group, safe='')}")
        return report, render_ranges(report) if args.ranges else render(report)
    if args.topics:
        report = get("/topics")
        return report, render_topics(report)
    key = _key_of(args)
    topics = [args.topic] if args.topic else [each["topic"] for each in get("/topics")["topics"]]
    reports = [get(f"/topics/{quote(name, safe='')}/keys/{quote(key, safe='')}") for name in topics]
    return reports, "\n\n".join(map(render_key, reports)) or "no topic has lanes; name a --topic"


def _key_of(args: argparse.Namespace) -> bytes:
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
    names = {
        member["member_id"]: member["instance_id"] or member["client_id"] or member["member_id"]
        for member in report["members"]
    }
    generation = report["generation_id"]
    head = (
        f"group {report['group']}: {report['state']}, assignor {report['assignor'] or '-'}, "
        + (f"generation {generation}, " if generation is not None else "")
        + f"{len(report['members'])} members, {len(report['lanes'])} lanes"
    )
    estimated = {lane["member_id"] for lane in report["lanes"] if not lane["lag_is_exact"]}
    members = [_member_row(member, names, estimated) for member in report["members"]]
    lanes = [_lane_row(lane, names) for lane in report["lanes"]]
    moves = [_move_row(move, names) for move in report.get("moves", ())[:MOVES_SHOWN]]
    tables = [align([MEMBER_COLUMNS, *members])] if members else []
    tables += [align([LANE_COLUMNS, *lanes])] if lanes else []
    tables += [align([MOVE_COLUMNS, *moves])] if moves else []
    lines = [line for table in tables for line in ("", *table)]
    refusal = report.get("refusal")  # older nodes have none
    refused = [f"refused: {refusal}"] if refusal else []
    direct = [names[one["member_id"]] for one in report["members"] if one.get("bypasses_keylane")]
    if direct:
        refused.append(f"partitions stay whole: these members bypass keylane: {', '.join(direct)}")
    return "\n".join([head, *refused, *lines, *_warnings(report["misplaced"])])


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


def render_topics(report: Mapping[str, Any]) -> str:
    """Return topics with lanes as text."""
    rows = [
        (each["topic"], str(each["partition_count"]), str(each["lane_count"]), each["hash"])
        for each in report["topics"]
    ]
    misplaced = [entry for each in report["topics"] for entry in each["misplaced"]]
    return "\n".join([*align([TOPIC_COLUMNS, *rows]), *_warnings(misplaced)])


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


def _warnings(misplaced: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines about records in other partitions than their keys'."""
    return [
        f"warning: topic {each['topic']} partition {each['partition']} offset {each['offset']}: "
        "the key belongs into another partition by Kafka's default partitioner, so lanes are not "
        "co-partitioned with other topics"
        for each in misplaced
    ]


def _member_row(
    member: Mapping[str, Any], names: Mapping[str, str], estimated: Collection[str]
) -> tuple[str, ...]:
    return (
        names[member["member_id"]],
        member["host"],
        str(member["lane_count"]),
        _lag(member["lag"], is_exact=member["member_id"] not in estimated),
        _text(member["bytes_per_s"]),
        _count(member["lanes_gained"]),
        _count(member["lanes_lost"]),
    )


def _lane_row(lane: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        lane["topic"],
        str(lane["lane_index"]),
        str(lane["partition"]),
        _text(lane["committed"]),
        _time(lane["committed_ms"]),
        str(lane["log_end"]),
        _lag(lane["lag"], is_exact=lane["lag_is_exact"]),
        _text(lane["bytes_per_s"]),
        names.get(lane["member_id"], "-"),
    )


def _move_row(move: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        _time(move["at_ms"]),
        move["topic"],
        str(move["lane_index"]),
        names.get(move["from_member"], move["from_member"]),
        names.get(move["to_member"], move["to_member"]),
        move["reason"],
    )


def _lag(lag: int | None, *, is_exact: bool) -> str:
    return "-" if lag is None else f"{'' if is_exact else ESTIMATE}{lag}"


def _count(lanes: Sequence[object] | None) -> str:
    return "-" if lanes is None else str(len(lanes))


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return "-"
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
