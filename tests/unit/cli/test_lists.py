"""keylane/cli/lists.py: groups, topics, nodes and events of a control port, in every form."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
import yaml

from keylane.cli import lists
from keylane.cli.main import main
from tests.unit.cli.fake_control import FakeControl

GROUP: dict[str, Any] = {
    "group": "billing", "kind": "lanes", "protocol": "classic", "state": "Stable",
    "member_count": 3, "lane_count": 8, "topics": ["orders"], "lag": 40, "lag_is_exact": False,
    "lag_s": 200.0, "lag_s_is_exact": True, "last_commit_ms": 1_700_000_000_000,
    "bytes_per_s": 10.0, "records_per_s": 2.0, "consumed_per_s": 1.6, "balance": 1.25,
    "stuck_members": 1, "refusal": None, "node": None,
}  # fmt: skip
UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(GROUP), "group": "audit", "lag_is_exact": False, "node": "10.0.0.2:19090",
}  # fmt: skip
QUIET = GROUP | {"group": "zeta", "lag": 50, "lag_s": 1.0, "stuck_members": 0}
GROUPS = {"at_ms": 0, "groups": [GROUP, QUIET, UNKNOWN], "left_out": 0}
CLUSTER: dict[str, Any] = {
    "node": {"version": "1.2.3", "number": 0, "control": "h:1", "started_ms": 0,
             "cluster_id": "c1"},
    "kafka": {"is_reachable": True, "unreachable_since_ms": None, "reason": None},
    "brokers": [
        {"id": 1, "address": "k1:9092", "rack": None, "is_reachable": True,
         "unreachable_since_ms": None, "reason": None},
        {"id": 2, "address": "k2:9092", "rack": "b", "is_reachable": False,
         "unreachable_since_ms": 1_700_000_000_000, "reason": "connection refused"},
    ],
    "nodes": [
        {"number": 0, "address": "h:19092", "control": "h:1", "is_self": True,
         "state": "serving", "partitions": 3, "groups": 2},
        {"number": 1, "address": "i:19092", "control": None, "is_self": False,
         "state": "draining", "partitions": 0, "groups": None},
    ],
    "journal": {},
    "problems": [
        {"code": "broker-away", "severity": "error", "since_ms": 0,
         "text": "Broker 2 cannot be reached.", "remedy": "Start it."},
    ],
}  # fmt: skip
EVENT: dict[str, Any] = {
    "id": 7, "at_ms": 1_700_000_000_000, "kind": "rebalance", "severity": "info",
    "group": "billing", "topic": None, "member": None, "text": "Group billing rebalanced.",
}  # fmt: skip


def rows_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize(
    ("sort", "names"),
    [
        ("name", ["audit", "billing", "zeta"]),
        ("lag", ["zeta", "billing", "audit"]),
        ("lag-s", ["billing", "zeta", "audit"]),
    ],
)
def test_groups_are_sorted(
    sort: str, names: list[str], control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name, or the furthest behind first; one whose lag is not known comes last."""
    control.answer("GET", "/groups", GROUPS)

    assert main(["groups", "--sort", sort]) == 0

    assert [row[0] for row in rows_of(capsys.readouterr().out)] == ["GROUP", *names]


def test_a_group_is_a_row(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    """An estimate is marked, what is not known is a dash, another node is named."""
    control.answer("GET", "/groups", GROUPS | {"left_out": 4})

    assert main(["groups"]) == 0

    rows = rows_of(capsys.readouterr().out)
    expected = ["billing", "lanes", "Stable", "3", "8", "~40", "3m20s", "2", "1.25", "1", "-"]
    assert rows[2] == expected
    assert rows[1] == ["audit", *["-"] * 9, "10.0.0.2:19090"]
    assert " ".join(rows[-1]) == "4 more groups are not listed"


def test_every_form_has_the_same(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and YAML are the control port's answer, sorted."""
    control.answer("GET", "/groups", GROUPS)
    shown = GROUPS | {"groups": [UNKNOWN, GROUP, QUIET]}

    main(["groups", "-o", "json"])
    as_json = json.loads(capsys.readouterr().out)
    main(["groups", "-o", "yaml"])

    assert as_json == yaml.safe_load(capsys.readouterr().out) == shown


@pytest.mark.parametrize(
    ("is_terminal", "no_color", "is_colored"),
    [(True, "", True), (True, "1", False), (False, "", False)],
)
def test_colours_are_for_terminals(
    is_terminal: bool,
    no_color: str,
    is_colored: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And for users that want them (NO_COLOR)."""
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)

    shown = lists.render_groups(GROUPS)

    assert ("\x1b[" in shown) is is_colored


def test_topics_are_listed(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    """Flow that an older node does not know is a dash."""
    topic = {"partition_count": 2, "lane_count": 16, "hash": "xxh64", "misplaced": []}
    flow = {"group_count": 3, "records_per_s": 5.2, "bytes_per_s": 99.6}
    topics = [topic | {"topic": "b"} | flow, topic | {"topic": "a"}]
    control.answer("GET", "/topics", {"topics": topics})

    assert main(["topics"]) == 0

    rows = rows_of(capsys.readouterr().out)[1:]
    assert rows == [
        ["a", "2", "16", "xxh64", "-", "-", "-"],
        ["b", "2", "16", "xxh64", "3", "5", "100"],
    ]


def test_nodes_brokers_and_problems(
    control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that drains, a broker that is away since when, and the remedy."""
    control.answer("GET", "/cluster", CLUSTER)

    assert main(["nodes"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "keylane 1.2.3, Kafka cluster c1"
    assert lines[4].split() == ["1", "i:19092", "-", "draining", "0", "-"]
    assert lines[8].split() == [
        "2", "k2:9092", "b", "away", "since", "2023-11-14T22:13:20Z:", "connection", "refused",
    ]  # fmt: skip
    assert lines[-1] == "error: Broker 2 cannot be reached. Start it."


def test_events_are_a_line_each(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    """With time and text; group and limit are asked for."""
    control.answer("GET", "/events", {"events": [EVENT], "last_id": 7})

    assert main(["events", "--group", "a b", "--limit", "5"]) == 0

    assert capsys.readouterr().out.splitlines()[1] == (
        "2023-11-14T22:13:20Z  rebalance  billing  Group billing rebalanced."
    )
    assert control.asked[0][1] == "/events?limit=5&group=a+b"


def test_events_are_followed(
    control: FakeControl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later ones are asked for after the last; Ctrl-C is the end."""
    control.answer("GET", "/events", {"events": [EVENT], "last_id": 7})
    waits = iter([None])

    class Pause:
        def wait(self, _seconds: float) -> None:
            try:
                next(waits)
            except StopIteration:
                raise KeyboardInterrupt from None

    monkeypatch.setattr(lists, "Event", Pause)

    assert main(["events", "--follow", "-o", "json"]) == 130

    assert list(map(json.loads, capsys.readouterr().out.splitlines())) == [EVENT, EVENT]
    assert [path for _, path, _ in control.asked] == ["/events?limit=50", "/events?after=7"]


def test_a_node_that_starts_again_is_followed_on(
    control: FakeControl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says that it is away, however long that is; its next events come after it."""
    control.answer("GET", "/events", {"events": [], "last_id": 7})
    steps = iter([
        lambda: control.refuse("GET", "/events", 503, "the node starts"),
        lambda: None,
        lambda: control.answer("GET", "/events", {"events": [EVENT], "last_id": 9}),
    ])  # fmt: skip

    class Pause:
        def wait(self, _seconds: float) -> None:
            try:
                next(steps)()
            except StopIteration:
                raise KeyboardInterrupt from None

    monkeypatch.setattr(lists, "Event", Pause)

    assert main(["events", "--follow", "-o", "json"]) == 130

    out, err = capsys.readouterr()
    assert list(map(json.loads, out.splitlines())) == [EVENT]
    assert err.splitlines()[0] == "keylane events: the node starts"
    assert err.count("the node starts") == 1
    assert [path for _, path, _ in control.asked][1:] == ["/events?after=7"] * 3


@pytest.mark.parametrize("command", ["groups", "topics", "nodes", "events"])
def test_a_dead_port_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the address and the cure; exit code 1."""
    assert main([command, "--control", "127.0.0.1:1"]) == 1

    assert capsys.readouterr().err == (
        f"keylane {command}: 127.0.0.1:1: nothing listens there; name the control port of a node "
        "that runs with --control, or with KEYLANE_CONTROL\n"
    )
