"""The tables of `keylane describe` for share groups."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.cli.describe import render
from keylane.cli.figures import age

WINDOW: dict[str, Any] = {
    "members": 2,
    "ready": 3,
    "in_flight": 4,
    "waiting": 50,
    "unconfirmed": 1,
    "released": 2,
    "last_attempts": 5,
    "oldest_offset": 4079,
    "oldest_s": 200.4,
    "end_offset": 4200,
    "span": 122,
    "look_ahead": 2000,
    "handed_out": 4022,
    "redelivered": 33,
    "is_settled": True,
    "error": None,
    "hottest_keys": [{"hash": "77", "records": 40, "oldest_offset": 4079, "held_s": 200.4}],
}
PARTITION: dict[str, Any] = {
    "topic": "orders",
    "partition": 0,
    "leader": 1,
    "start_offset": 4079,
    "lag": 130,
    "is_ordered": True,
    "node": None,
    "window": WINDOW,
}
MEMBER = {"member_id": "m1", "client_id": "worker", "host": "/10.0.0.7", "partition_count": 3}


def report(*partitions: dict[str, Any], is_ordered: bool = True) -> dict[str, Any]:
    return {
        "group": "billing",
        "state": "Stable",
        "assignor": "simple",
        "generation_id": 5,
        "members": [],
        "lanes": [],
        "misplaced": [],
        "share": {
            "is_ordered": is_ordered,
            "members": [MEMBER, MEMBER | {"client_id": ""}],
            "partitions": list(partitions),
        },
    }


def test_members_partitions_and_keys_are_shown() -> None:
    """A member without a client id by its own; the window in columns; keys by hash."""
    lines = render(report(PARTITION)).splitlines()

    assert lines[0] == (
        "share group billing: Stable, in the order of keys, assignor simple, epoch 5, 2 members, "
        "1 partitions"
    )
    assert [line.split() for line in lines[3:5]] == [
        ["worker", "/10.0.0.7", "3"],
        ["m1", "/10.0.0.7", "3"],
    ]
    assert lines[7].split() == [
        *("orders", "0", "1", "4079", "130", "4200", "3", "4", "50", "1", "2", "4079", "3m20s"),
        *("122/2000", "4022", "33", "5", "settled"),
    ]
    assert lines[10].split() == ["77", "orders", "0", "40", "4079", "3m20s"]


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"window": WINDOW | {"is_settled": False}}, "not settled"),
        ({"window": WINDOW | {"error": "CORRUPT_MESSAGE"}}, "CORRUPT_MESSAGE"),
        ({"window": None}, "closed"),
        ({"window": None, "is_ordered": False}, "not ordered"),
        ({"window": None, "node": "http://b:9100"}, "at another node"),
    ],
)
def test_the_state_of_a_partition_is_its_last_column(changed, state) -> None:
    """An error, whether it is settled, or the reason why there is no window."""
    lines = render(report(PARTITION | changed)).splitlines()

    assert lines[7].endswith(state)
    assert (
        lines[-1] == "1 partitions are at another node: ask it with --control http://b:9100"
    ) == (state == "at another node")


def test_a_group_without_a_rule_has_start_and_lag() -> None:
    """What is not known is a dash."""
    plain = PARTITION | {"window": None, "is_ordered": False, "start_offset": None, "lag": None}

    lines = render(report(plain, is_ordered=False)).splitlines()

    assert "without an order" in lines[0]
    assert [line.split() for line in lines[6:]] == [
        ["TOPIC", "PARTITION", "LEADER", "START", "LAG"],
        ["orders", "0", "1", "-", "-"],
    ]


def test_keys_with_most_records_come_first() -> None:
    """Of all partitions, ten at most."""
    keys = [{"hash": str(n), "records": n, "oldest_offset": n, "held_s": 0.4} for n in range(2, 9)]
    partitions = [
        PARTITION | {"partition": number, "window": WINDOW | {"hottest_keys": keys}}
        for number in range(2)
    ]

    lines = render(report(*partitions)).splitlines()

    assert [line.split()[0] for line in lines[-10:]] == [
        str(n) for n in (8, 8, 7, 7, 6, 6, 5, 5, 4, 4)
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.04, "0.0s"), (9.96, "10.0s"), (12.4, "12s"), (59.7, "1m00s"), (7500, "2h05m")],
)
def test_an_age_has_one_or_two_units(seconds, text) -> None:
    """Tenths below ten seconds, whole ones up to a minute."""
    assert age(seconds) == text
