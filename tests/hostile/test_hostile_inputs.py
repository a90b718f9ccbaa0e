"""A few thousand of the hostile inputs that `tests.long.hostile` gives millions of."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator

import pytest

from keylane.errors import FrameInvalid
from tests.fuzz.mutate import make_input, minimise
from tests.fuzz.targets import TARGETS
from tests.long.hostile_kinds import FORGED, SECRET
from tests.long.hostile_log import judge_log
from tests.long.hostile_parsers import Tally, run_numbers, try_input

INPUTS = 100
"""Of each decoder; with the kernels' compilation a few seconds."""
SEED = 20261123


@pytest.fixture
def _others_frozen() -> Iterator[None]:
    """Collect nothing of other tests: a whole second of it would count as an input's time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.timeout(400)  # kernels may have to be compiled first
@pytest.mark.usefixtures("_others_frozen")
def test_decoders_read_or_refuse_hostile_inputs() -> None:
    """Every decoder meets some hundred inputs: no exception but the declared ones."""
    count = INPUTS * len(TARGETS)

    tally = run_numbers(SEED, 0, count, deadline_s=math.inf, note=lambda _: None)

    assert [(one.target, one.number, one.text) for one in tally.findings] == []
    assert tally.inputs == count
    assert {name for name, _ in tally.counts} == {target.__name__ for target in TARGETS}


def test_an_input_is_known_by_seed_and_number() -> None:
    """A finding of a long run is made again from two numbers."""
    assert [make_input(7, number) for number in range(200)] == [
        make_input(7, number) for number in range(200)
    ]
    assert make_input(7, 5) != make_input(8, 5)


def test_a_finding_is_kept_once_and_counted(monkeypatch) -> None:
    """What is no declared error is a finding; the same again only counts."""

    def broken(data: bytes) -> str:
        if b"x" in data:
            raise KeyError("a bug")
        raise FrameInvalid("refused")

    monkeypatch.setattr("tests.long.hostile_parsers.run_one", _as_run_one(broken))
    tally = Tally()
    for number, data in enumerate((b"\0\0ax", b"\0\0xx", b"\0\0a")):
        try_input(tally, number, data)

    assert [(one.number, one.text) for one in tally.findings] == [(0, "KeyError: 'a bug'")]
    assert tally.kinds.total() == 2
    assert tally.counts[TARGETS[0].__name__, "refused"] == 1


def _as_run_one(target):
    def run_one(data: bytes) -> str:
        try:
            return target(data)
        except FrameInvalid:
            return "refused"

    return run_one


def test_a_finding_is_made_short() -> None:
    """What does not matter of an input is left out; decoder and choice stay."""
    data = b"\3\4" + bytes(500) + b"needle" + bytes(500)

    assert minimise(data, lambda tried: b"needle" in tried) == b"\3\4needle"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Traceback (most recent call last):", "a stack trace"),
        (f"2026-01-01 00:00:00,000 INFO keylane.x name={SECRET}", "a secret of a client"),
        (FORGED, "a line that a client wrote"),
        ("2026-01-01 00:00:00,000 INFO keylane.x \x1b[2J", "bytes of a client as they are"),
        ("2026-01-01 00:00:00,000 INFO keylane.x " + "y" * 5000, "more than 1200 characters"),
        ("anything", "no line of a log"),
        ("\n".join(["2026-01-01 00:00:00,000 INFO keylane.x y"] * 500), "500 lines for 10 inputs"),
    ],
)
def test_a_log_is_judged(text, said) -> None:
    """Each thing that hostile clients must not bring into a log is named."""
    assert any(said in found for found in judge_log(text, inputs=10, name="log"))


def test_a_good_log_has_no_finding() -> None:
    """Lines that keylane itself logs are no finding, whatever they say."""
    lines = (
        "keylane ready bootstrap=127.0.0.1:1 control=127.0.0.1:2\n"
        "2026-01-01 00:00:00,000 WARNING keylane.session closed session_id=s1 peer=h:1 reason=x\n"
    )

    assert judge_log(lines, inputs=1, name="log") == []
