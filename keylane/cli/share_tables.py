"""Tables of a share group for `keylane describe`: members, partitions, and the hottest keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from keylane.cli.columns import align
from keylane.cli.figures import DASH, age

MEMBER_COLUMNS: Final = ("MEMBER", "HOST", "PARTITIONS")
PLAIN_COLUMNS: Final = ("TOPIC", "PARTITION", "LEADER", "START", "LAG")
WINDOW_COLUMNS: Final = (
    *("END", "READY", "IN-FLIGHT", "WAITING", "UNCONFIRMED", "RELEASED", "OLDEST", "AGE", "SPAN"),
    *("HANDED-OUT", "AGAIN", "LAST-ATTEMPT", "STATE"),
)
KEY_COLUMNS: Final = ("KEY-HASH", "TOPIC", "PARTITION", "RECORDS", "OLDEST", "AGE")
KEYS_SHOWN: Final = 10


def render_share(report: Mapping[str, Any]) -> str:
    """Return the report of a share group as text."""
    share = report["share"]
    partitions, members = share["partitions"], share["members"]
    order = "in the order of keys" if share["is_ordered"] else "without an order"
    head = (
        f"share group {report['group']}: {report['state']}, {order}, assignor "
        f"{report['assignor'] or DASH}, epoch {report['generation_id']}, "
        f"{len(members)} members, {len(partitions)} partitions"
    )
    rows = [_member_row(member) for member in members]
    tables = [align([MEMBER_COLUMNS, *rows])] if rows else []
    if partitions:
        tables.append(align(_partition_rows(partitions, has_windows=share["is_ordered"])))
    keys = [_key_row(each, key) for each, key in _hottest(partitions)]
    tables += [align([KEY_COLUMNS, *keys])] if keys else []
    lines = [line for table in tables for line in ("", *table)]
    return "\n".join([head, *lines, *_nodes(partitions)])


def _member_row(member: Mapping[str, Any]) -> tuple[str, ...]:
    name = member["client_id"] or member["member_id"]
    return name, member["host"], str(member["partition_count"])


def _partition_rows(
    partitions: Sequence[Mapping[str, Any]], *, has_windows: bool
) -> Iterator[tuple[str, ...]]:
    yield PLAIN_COLUMNS + (WINDOW_COLUMNS if has_windows else ())
    for each in partitions:
        row = (
            each["topic"],
            str(each["partition"]),
            _text(each["leader"]),
            _text(each["start_offset"]),
            _text(each["lag"]),
        )
        yield row + (_window_cells(each) if has_windows else ())


def _window_cells(partition: Mapping[str, Any]) -> tuple[str, ...]:
    window = partition["window"]
    if window is None:
        state = "closed" if partition["is_ordered"] else "not ordered"
        state = "at another node" if partition["node"] else state
        return *(DASH for _ in WINDOW_COLUMNS[1:]), state
    return (
        _text(window["end_offset"]),
        str(window["ready"]),
        str(window["in_flight"]),
        str(window["waiting"]),
        str(window["unconfirmed"]),
        str(window["released"]),
        _text(window["oldest_offset"]),
        age(window["oldest_s"]),
        f"{window['span']}/{window['look_ahead']}",
        str(window["handed_out"]),
        str(window["redelivered"]),
        str(window["last_attempts"]),
        window["error"] or ("settled" if window["is_settled"] else "not settled"),
    )


def _hottest(
    partitions: Sequence[Mapping[str, Any]],
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the keys with most records, each with its partition."""
    found = [
        (each, key)
        for each in partitions
        if each["window"] is not None
        for key in each["window"]["hottest_keys"]
    ]
    found.sort(key=lambda pair: (-pair[1]["records"], -pair[1]["held_s"]))
    return found[:KEYS_SHOWN]


def _key_row(partition: Mapping[str, Any], key: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        key["hash"],
        partition["topic"],
        str(partition["partition"]),
        str(key["records"]),
        str(key["oldest_offset"]),
        age(key["held_s"]),
    )


def _nodes(partitions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each other node that has windows of the group."""
    nodes: dict[str, int] = {}
    for each in partitions:
        if each["node"]:
            nodes[each["node"]] = nodes.get(each["node"], 0) + 1
    return [
        f"{count} partitions are at another node: ask it with --control {node}"
        for node, count in sorted(nodes.items())
    ]


def _text(value: int | None) -> str:
    return DASH if value is None else str(value)
