"""The tables of `keylane describe`."""

from __future__ import annotations

from typing import Any

from keylane.cli.describe import render

MEMBER: dict[str, Any] = {
    "member_id": "m1",
    "instance_id": None,
    "client_id": "worker-1",
    "host": "/10.0.0.7",
    "lane_count": 1,
    "bytes_per_s": 12.4,
    "lag": 3,
    "lanes_gained": [{"topic": "orders", "lane_index": 0}],
    "lanes_lost": [],
}
LANE: dict[str, Any] = {
    "topic": "orders",
    "lane_index": 0,
    "partition": 0,
    "member_id": "m1",
    "committed": 90,
    "committed_ms": 1_700_000_000_999,
    "log_end": 100,
    "lag": 3,
    "lag_is_exact": True,
    "bytes_per_s": 12.4,
}
UNREAD = LANE | {
    "lane_index": 1,
    "member_id": None,
    "committed": None,
    "committed_ms": None,
    "lag": None,
    "lag_is_exact": False,
    "bytes_per_s": None,
}
REPORT: dict[str, Any] = {
    "group": "billing",
    "state": "Stable",
    "assignor": "range",
    "generation_id": 7,
    "members": [MEMBER],
    "lanes": [LANE, UNREAD],
}


def test_members_and_lanes_are_shown() -> None:
    """A member is named by instance, else by client id; what is not known is a dash."""
    lines = render(REPORT).splitlines()

    assert lines[0] == "group billing: Stable, assignor range, generation 7, 1 members, 2 lanes"
    assert lines[3].split() == ["worker-1", "/10.0.0.7", "1", "3", "12", "1", "0"]
    committed = ["90", "2023-11-14T22:13:20Z", "100", "3", "12", "worker-1"]
    assert lines[6].split() == ["orders", "0", "0", *committed]
    assert lines[7].split() == ["orders", "1", "0", "-", "-", "100", "-", "-", "-"]


def test_an_estimate_is_marked() -> None:
    """A tilde stands before a lag that is no exact count, and before a sum with one in it."""
    report = REPORT | {"lanes": [LANE | {"lag_is_exact": False}]}

    lines = render(report).splitlines()

    assert lines[3].split()[3] == "~3"
    assert lines[6].split()[6] == "~3"


def test_a_group_of_another_assignor_has_no_moves() -> None:
    """Without a plan of keylane's there is no generation, and dashes for gained and lost."""
    member = MEMBER | {"lanes_gained": None, "lanes_lost": None}

    lines = render(REPORT | {"generation_id": None, "members": [member]}).splitlines()

    assert lines[0] == "group billing: Stable, assignor range, 1 members, 2 lanes"
    assert lines[3].split()[-2:] == ["-", "-"]


def test_a_group_without_members_or_lanes_is_one_line() -> None:
    """Nothing to show: no heads of empty tables."""
    report = REPORT | {"members": [], "lanes": []}

    assert "\n" not in render(report)
