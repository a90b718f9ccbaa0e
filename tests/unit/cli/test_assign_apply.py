"""keylane/cli/assign.py, --apply: a plan becomes a proxy's assignments, whatever they were."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.cli.assign import plan_changes
from keylane.cli.main import main
from keylane.keyrange.space import HASH_MAX, KeyRange
from tests.reference.control_port import control_port_in_thread


def part(topic: str, partition: int = 0) -> dict[str, Any]:
    return {"topic": topic, "partition": partition, "ranges": []}


def test_a_client_outside_the_plan_loses_its_topics() -> None:
    """Others' parts of the planned topics go, their other topics stay; so do members' own."""
    before = {"a": [part("t"), part("u")], "b": [part("t")], "c": [part("u", 1)], "m": [part("u")]}

    changes = plan_changes(before, {"m": [part("t")], "n": []}, ["t"])

    assert changes == {"a": [part("u")], "b": None, "m": [part("u"), part("t")], "n": []}


def test_a_plan_is_applied_and_applied_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Three members, then two: every hash of the topic has one owner each time."""
    with control_port_in_thread() as port:
        command = ["assign", "--topic", "orders", "--partitions", "3", "--strategy", "round-robin"]
        command += ["--apply", port.server.address]

        assert main([*command, "--members", "5"]) == 0
        table = port.assignments.table
        assert len(table.clients) == 5
        half = KeyRange(0, HASH_MAX // 2 - 1)
        assert table.owners("orders", 0)[0] == ("member-0", (half,))

        assert main([*command, "--members", "3"]) == 0
        reported = capsys.readouterr().out.splitlines()
        assert "version 1: 5 clients on" in reported[0]
        assert reported[1].startswith("version 2: 3 clients on")
        assert reported[1].endswith("; taken from member-3, member-4")
        owners = [port.assignments.table.owners("orders", place) for place in range(3)]
        assert owners == [((f"member-{n}", (KeyRange(0, HASH_MAX),)),) for n in range(3)]


def test_a_refusal_names_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown topic, and a port without a listener: one line and exit code 1."""
    command = ["assign", "--partitions", "1", "--members", "1", "--topic", "nix", "--apply"]
    with control_port_in_thread() as port:
        address = port.server.address

        assert main([*command, address]) == 1
        reported = capsys.readouterr().err
        assert "/assignments/member-0/0/topic: there is no topic nix" in reported

    assert main([*command, address]) == 1
    assert address in capsys.readouterr().err
