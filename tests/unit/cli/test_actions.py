"""keylane/cli/actions.py: what is sent to the control port, and what is shown of its answer."""

from __future__ import annotations

from typing import Any

import click
import pytest

from keylane.cli.actions import read_topics
from keylane.cli.main import main
from tests.unit.cli.fake_control import FakeControl

REBALANCE: dict[str, Any] = {
    "dry_run": True, "balance": 2.5, "balance_after": 1.1, "is_asked": False, "reason": None,
    "moves": [{"topic": "orders", "lane_index": 3, "from_member": "a", "to_member": "b",
               "bytes_per_s": 10.4}],
}  # fmt: skip
RESET: dict[str, Any] = {
    "dry_run": True,
    "partitions": [{"topic": "orders", "partition": 1, "from_offset": 90, "to_offset": 40,
                    "lanes": 16, "offsets_again": 50, "offsets_skipped": 0}],
}  # fmt: skip
DRAIN: dict[str, Any] = {
    "dry_run": False, "node": 2, "state": "draining", "partitions": 3, "groups": ["billing"],
    "connections": 12,
}  # fmt: skip


def test_a_rebalance_is_shown_before_it_is_done(
    control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default changes nothing, and says how it is done."""
    control.answer("POST", "/groups/a%2Fb/rebalance", REBALANCE)

    assert main(["rebalance", "--group", "a/b"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert control.asked == [("POST", "/groups/a%2Fb/rebalance?dry_run=true", None)]
    assert lines[0].startswith("group a/b: balance 2.50, after it 1.10 ")
    assert lines[3].split() == ["orders", "3", "a", "b", "10"]
    assert lines[-1] == "nothing was changed: --execute does it"


def test_a_rebalance_is_asked_for(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    """With --execute; one that could not be asked for is a failure, with the reason."""
    path = "/groups/g/rebalance"
    control.answer("POST", path, REBALANCE | {"dry_run": False, "is_asked": True})
    assert main(["rebalance", "--group", "g", "--execute"]) == 0
    control.answer("POST", path, REBALANCE | {"dry_run": False, "moves": [], "reason": "it moves"})
    assert main(["rebalance", "--group", "g", "--execute"]) == 1

    out = capsys.readouterr().out
    assert control.asked[0][1] == f"{path}?dry_run=false"
    assert "the group was asked to rebalance" in out
    assert "nothing moves: it moves" in out


@pytest.mark.parametrize(
    ("options", "target"),
    [
        (["--to-earliest"], {"to": "earliest", "value": None}),
        (["--to-latest"], {"to": "latest", "value": None}),
        (["--to-current"], {"to": "current", "value": None}),
        (["--to-offset", "0"], {"to": "offset", "value": 0}),
        (["--shift-by", "-10"], {"to": "shift-by", "value": -10}),
        (["--by-duration", "PT1H"], {"to": "duration", "value": "PT1H"}),
        (
            ["--to-datetime", "2026-11-21T08:00:00.000"],
            {"to": "datetime", "value": "2026-11-21T08:00:00.000"},
        ),
    ],
)
def test_each_place_of_a_reset(
    options: list[str], target: dict[str, Any], control: FakeControl
) -> None:
    """The options of kafka-consumer-groups, in the control port's words."""
    control.answer("POST", "/groups/g/reset-offsets", RESET)

    assert main(["reset-offsets", "--group", "g", "--topic", "orders:3,1", *options]) == 0

    topics = [{"topic": "orders", "partitions": [1, 3]}]
    asked = ("POST", "/groups/g/reset-offsets?dry_run=true", {"topics": topics, **target})
    assert control.asked == [asked]


def test_a_reset_is_done(control: FakeControl, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all topics, with --execute."""
    control.answer("POST", "/groups/g/reset-offsets", RESET | {"dry_run": False})

    assert (
        main(["reset-offsets", "--group", "g", "--all-topics", "--to-earliest", "--execute"]) == 0
    )

    lines = capsys.readouterr().out.splitlines()
    assert control.asked[0][1:] == (
        "/groups/g/reset-offsets?dry_run=false",
        {"topics": None, "to": "earliest", "value": None},
    )
    assert lines[1].split() == ["orders", "1", "16", "90", "40", "50", "0"]
    assert lines[-1] == "the offsets of group g are set"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ([], "--topic or --all-topics is missing"),
        (["--all-topics"], "--to-earliest, --to-latest, "),
        (["--all-topics", "--to-earliest", "--to-latest"], "--to-latest: cannot stand beside"),
        (["--topic", "t:x", "--to-latest"], "--topic t:x: expected NAME or NAME:PARTITION"),
        (["--all-topics", "--to-datetime", "noon"], "--to-datetime noon: expected a time"),
        (["--all-topics", "--to-latest", "--dry-run", "--execute"], "--execute: cannot stand"),
        (["--all-topics", "--to-offset", "-1"], "--to-offset: -1 is not in the range x>=0"),
    ],
)
def test_a_wrong_reset_is_one_line(
    options: list[str], line: str, control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is asked of the control port; exit code 2."""
    assert main(["reset-offsets", "--group", "g", *options]) == 2

    err = capsys.readouterr().err
    assert err.startswith(f"keylane reset-offsets: {line}")
    assert err.count("\n") == 1
    assert not control.asked


def test_a_refused_reset_is_one_line(
    control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control port's own words, without the document around them; exit code 1."""
    control.refuse("POST", "/groups/g/reset-offsets", 409, "group g has 2 members; stop them")

    assert main(["reset-offsets", "--group", "g", "--all-topics", "--to-latest"]) == 1
    assert capsys.readouterr().err == "keylane reset-offsets: group g has 2 members; stop them\n"


def test_topics_as_kafka_consumer_groups_has_them() -> None:
    """A topic, or some of its partitions; no topic twice."""
    assert read_topics(["a", "b:2,0"]) == [
        {"topic": "a", "partitions": None},
        {"topic": "b", "partitions": [0, 2]},
    ]
    with pytest.raises(click.UsageError, match="named twice"):
        read_topics(["a", "a:1"])


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ([], ("POST", "/nodes/2/drain?dry_run=false")),
        (["--dry-run"], ("POST", "/nodes/2/drain?dry_run=true")),
        (["--undo"], ("DELETE", "/nodes/2/drain?dry_run=false")),
    ],
)
def test_a_node_is_drained(
    options: list[str],
    asked: tuple[str, str],
    control: FakeControl,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Or may serve again."""
    for method in ("POST", "DELETE"):
        control.answer(method, "/nodes/2/drain", DRAIN | {"dry_run": "--dry-run" in options})

    assert main(["drain", "--node", "2", *options]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert control.asked[0][:2] == asked
    assert lines[1].split() == ["2", "draining", "3", "billing", "12"]
    assert ("nothing was changed" in lines[-1]) is ("--dry-run" in options)
