"""keylane/demo/runner.py: the verdict, and the exit code that goes with it."""

from __future__ import annotations

import signal

import pytest

from keylane.advise.errors import AdviceFailed
from keylane.cli.main import main
from keylane.demo import runner
from keylane.demo.forecast import Seen

SETTINGS = runner.DemoSettings(
    seconds=50.0,
    members=8,
    partitions=2,
    lanes=16,
    rate_per_s=2_000.0,
    customers=500,
    plain=True,
    direct=False,
)


def test_advice_that_cannot_be_had_is_a_line_of_the_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lines on records would be lost with an error; this one fails, and says why."""

    def fail(*_: object, **__: object) -> float:
        raise AdviceFailed("nothing was read within 20 s")

    monkeypatch.setattr(runner, "forecast_speedup", fail)

    check = runner._check_advice("b:1", Seen(members=8, speedup=4.0, excess=1.05), SETTINGS)

    assert not check.passed
    assert check.name == "advice: nothing was read within 20 s"


@pytest.mark.parametrize("code", [0, 1])
def test_the_command_ends_with_the_verdict(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A check that failed is exit code 1, which a script sees."""
    monkeypatch.setattr(runner, "run_demo", lambda *_: code)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its own

    assert main(["demo", "--plain"]) == code
