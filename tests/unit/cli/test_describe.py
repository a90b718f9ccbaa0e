"""The tables of `keylane describe`."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.cli import describe
from keylane.cli.describe import render, render_key
from keylane.cli.lists import render_topics
from keylane.cli.main import main
from tests.unit.cli.fake_control import FakeControl

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
    "misplaced": [],
}


def test_members_and_lanes_are_shown() -> None:
    """A member is named by instance, else by client id; what is not known is a dash."""
    lines = render(REPORT).splitlines()

    assert lines[0] == "group billing: Stable, assignor range, generation 7, 1 members, 2 lanes"
    assert lines[3].split() == ["worker-1", "/10.0.0.7", "1", "3", "12", "1", "0"]
    committed = ["90", "2023-11-14T22:13:20Z", "100", "3", "12", "worker-1"]
    assert lines[6].split() == ["orders", "0", "0", *committed]
    assert lines[7].split() == ["orders", "1", "0", "-", "-", "100", "-", "-", "-"]


def test_a_refusal_stands_below_the_group() -> None:
    """The reason why keylane refuses the group's plan is the second line."""
    lines = render(REPORT | {"refusal": "subtopology 0 reads a and b"}).splitlines()

    assert lines[1:3] == ["refused: subtopology 0 reads a and b", ""]


def test_members_that_bypass_keylane_stand_below_the_group() -> None:
    """By the names of the table; a node of an older version does not say."""
    member = MEMBER | {"bypasses_keylane": True, "instance_id": "worker-9"}

    lines = render(REPORT | {"members": [MEMBER, member | {"member_id": "d"}]}).splitlines()

    assert lines[1] == "partitions stay whole: these members bypass keylane: worker-9"


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


MISPLACED = {"topic": "orders", "partition": 1, "offset": 40}


def test_a_record_in_a_wrong_partition_is_shown() -> None:
    """Below the group's lanes, and below the topics."""
    topics = {
        "topics": [
            {
                "topic": "orders",
                "partition_count": 3,
                "lane_count": 4,
                "hash": "murmur2",
                "misplaced": [MISPLACED],
            }
        ]
    }

    lines = render(REPORT | {"misplaced": [MISPLACED]}).splitlines()
    listed = render_topics(topics).splitlines()

    assert lines[-1] == listed[-1]
    assert lines[-1].startswith("warning: topic orders partition 1 offset 40: the key belongs")
    assert listed[1].split()[:4] == ["orders", "3", "4", "murmur2"]


def test_the_place_of_a_key_is_shown_without_the_key() -> None:
    """Its partition with the partitioner that it is by, its lane, and a row per group."""
    report = {
        "topic": "orders",
        "partition_count": 3,
        "hash": "murmur2",
        "point": "77",
        "partition": 2,
        "partitioner": "default",
        "partitioner_hash": 479470107,
        "lane": 1,
        "lane_index": 5,
        "groups": [
            {
                "group": "billing",
                "topic": "orders",
                "lane_index": 5,
                "member_id": None,
                "client_id": None,
                "host": None,
            }
        ],
        "groups_left_out": 2,
    }

    lines = render_key(report).splitlines()
    plain = render_key(report | {"lane": None, "lane_index": None, "groups": []})

    assert lines[0] == (
        "topic orders: partition 2 of 3 by Kafka's default partitioner (hash 479470107), "
        "lane 1, lane index 5 by murmur2 (point 77)"
    )
    assert lines[3].split() == ["billing", "orders", "5", "-", "-", "-"]
    assert lines[4] == "2 more groups were not asked"
    assert "no lane" in plain


PACE: dict[str, Any] = {
    "lag_s": 90.0, "lag_s_is_exact": True, "consumed_per_s": 1.0,
    "last_commit_ms": 1_700_000_000_000, "is_stuck": True, "stuck_s": 75.0,
}  # fmt: skip


def test_a_stuck_member_is_shown() -> None:
    """With the time that its oldest record waits, and what it does; older nodes do not say."""
    member = MEMBER | PACE

    lines = render(REPORT | {"members": [member], "balance": {"busiest": 1.5}}).splitlines()

    assert lines[0].endswith("2 lanes, balance 1.50")
    assert lines[2].split()[-4:] == ["LAG-TIME", "DONE/S", "LAST-COMMIT", "STATE"]
    assert lines[3].split()[-5:] == ["1m30s", "1", "2023-11-14T22:13:20Z", "stuck", "1m15s"]


def test_all_groups_are_described(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    """The furthest behind first; a group that is gone meanwhile is a line on stderr."""
    groups = [{"group": "a", "lag": 1}, {"group": "b", "lag": 9}, {"group": "c", "lag": 0}]
    control.answer("GET", "/groups", {"groups": groups, "left_out": 0})
    for name in ("a", "b"):
        control.answer("GET", f"/groups/{name}", REPORT | {"group": name})
    control.refuse("GET", "/groups/c", 404, "there is no group c")

    assert main(["describe", "--all-groups", "--sort", "lag"]) == 0

    out, err = capsys.readouterr()
    heads = [line.split(":")[0] for line in out.splitlines() if line.startswith("group ")]
    assert heads == ["group b", "group a"]
    assert err == "keylane describe: there is no group c\n"


def test_a_node_that_describes_no_group_is_no_cluster_without_groups(
    control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """It went away after the list: exit code 1, and nothing on stdout."""
    groups = [{"group": "a", "lag": 1}, {"group": "b", "lag": 9}]
    control.answer("GET", "/groups", {"groups": groups, "left_out": 0})
    for name in ("a", "b"):
        control.refuse("GET", f"/groups/{name}", 503, f"{name}: no broker answers")

    assert main(["describe", "--all-groups"]) == 1

    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == [f"keylane describe: {name}: no broker answers" for name in "ab"]


def test_members_and_lanes_are_sorted(
    control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """By lag, one that is not known behind 0, or members by the names of the table."""
    members = [
        MEMBER | {"member_id": name, "client_id": name, "lag": lag}
        for name, lag in (("u", None), ("b", 1), ("a", 0), ("c", 7))
    ]
    lanes = [LANE | {"lag": 1}, UNREAD, LANE | {"lag": 4, "lane_index": 9}]
    control.answer("GET", "/groups/billing", REPORT | {"members": members, "lanes": lanes})

    main(["describe", "--group", "billing", "--sort", "lag"])
    by_lag = capsys.readouterr().out.splitlines()
    main(["describe", "--group", "billing", "--sort", "name"])
    by_name = capsys.readouterr().out.splitlines()

    assert [line.split()[0] for line in by_lag[3:7]] == ["c", "b", "a", "u"]
    assert [line.split()[1] for line in by_lag[9:12]] == ["9", "0", "1"]
    assert [line.split()[0] for line in by_name[3:7]] == ["a", "b", "c", "u"]


def test_a_group_is_watched(
    control: FakeControl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until Ctrl-C; a node that does not answer is asked again."""
    control.answer("GET", "/groups/billing", REPORT)
    intervals: list[float] = []

    class Pause:
        def wait(self, seconds: float) -> None:
            intervals.append(seconds)
            if len(intervals) == 2:
                raise KeyboardInterrupt
            control.refuse("GET", "/groups/billing", 503, "no broker answers")

    monkeypatch.setattr(describe, "Event", Pause)

    assert main(["describe", "--group", "billing", "--watch", "--interval", "0.5"]) == 130

    out, err = capsys.readouterr()
    assert out.count("group billing: Stable") == 1
    assert err.startswith("keylane describe: no broker answers\n")
    assert intervals == [0.5, 0.5]


def test_an_unknown_group_is_one_line(
    control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text of the problem document, and nothing around it."""
    control.refuse("GET", "/groups/x", 404, "there is no group x", field="group", title="Not Found")

    assert main(["describe", "--group", "x"]) == 1
    assert capsys.readouterr() == ("", "keylane describe: there is no group x\n")
