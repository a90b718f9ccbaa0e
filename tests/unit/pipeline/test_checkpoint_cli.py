"""pipeline/checkpoint_cli.py: a dry run by default, and exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from keylane.assignor.range_plan import RangePlan, write_plan
from keylane.cli.main import main
from tests.unit.pipeline.test_checkpoint import make_checkpoint


def test_a_dry_run_shows_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offsets before and after, and the file as it was."""
    folder = make_checkpoint(tmp_path / "ck", {"orders.lanes-2": {"0": 10, "1": 30}})
    before = (folder / "offsets" / "10").read_bytes()

    code = main(
        ["spark", "checkpoint", str(folder), "--from", "orders.lanes-2", "--to", "orders.lanes-4"]
    )

    reported = capsys.readouterr().out
    assert code == 0
    assert "partition 0: 10 30 -> 10 10 30 30" in reported
    assert "nothing was written" in reported
    assert (folder / "offsets" / "10").read_bytes() == before


def test_write_rewrites_and_keeps_a_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan's cuts decide: one of its lanes lies inside the old one."""
    folder = make_checkpoint(tmp_path / "ck", {"orders": {"0": 10}})
    plan = RangePlan(topic="orders", lane_count=3, cuts=((5, 9),), epoch=0)
    (tmp_path / "plan.json").write_bytes(write_plan(plan))
    arguments = ["spark", "checkpoint", str(folder), "--from", "orders", "--to", "orders"]

    code = main([*arguments, "--to-plan", str(tmp_path / "plan.json"), "--write"])

    assert code == 0
    assert '{"orders":{"0":10,"1":10,"2":10}}' in (folder / "offsets" / "10").read_text()
    assert "all 1 lanes at 10 -> all 3 lanes at 10" in capsys.readouterr().out
    assert (folder / "keylane-backup" / "offsets-10").exists()


def test_a_refusal_and_a_bad_plan_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1: it cannot be done exactly; 2: the arguments are wrong. One line each."""
    folder = make_checkpoint(tmp_path / "ck", {"orders.lanes-2": {"0": 10, "1": 30}})
    arguments = ["spark", "checkpoint", str(folder), "--from", "orders.lanes-2", "--to", "orders"]
    (tmp_path / "plan.json").write_text("{")

    refused = main(arguments)
    bad = main([*arguments, "--to-plan", str(tmp_path / "plan.json")])

    lines = capsys.readouterr().err.splitlines()
    assert (refused, bad) == (1, 2)
    assert len(lines) == 2
    assert "new lane 0 joins old lanes 0 at 10, 1 at 30" in lines[0]
