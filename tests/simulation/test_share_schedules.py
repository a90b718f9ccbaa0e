"""Seeded schedules of share groups in the order of keys: nodes, members, brokers, faults.

`python -m tests.simulation --shares` plays more of them.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.simulation.chunks import chunks, failures
from tests.simulation.run import play
from tests.simulation.share_member import ShareLife
from tests.simulation.share_mutations import SHARES
from tests.simulation.share_schedule import draw_hand_overs, draw_received, draw_shares
from tests.simulation.share_work import Work

SCHEDULES, OF_CI, CHUNK = 400, 30, 10
HAND_OVERS, HAND_OVERS_OF_CI = 100, 10
RECEIVED, RECEIVED_OF_CI = 100, 10
FOUND_IN = {
    "records are handed out before the session has settled": (3, 46, 95),
    "a key is free before the broker has confirmed": (0, 1, 2),
    "records of a key go to two members": (0, 1, 2),
    "a released record counts as archived": (0, 1, 2),
    "locks are not renewed": (56, 68, 95),
    "a member's deadline releases nothing": (1, 2, 4),
    "an outcome counts under another member's lock": (28, 30, 32),
    "a record is taken for a gap": (0, 1, 2),
    "a release ends the record": (0, 1, 2),
    "records of a member whose connection ends are forgotten": (3, 4, 59),
    "offered records are handed out before the session has settled": (114, 139),
    "a node goes on with partitions of another node": (22, 37, 75),
}
"""Schedules that find each mistake."""


@pytest.mark.parametrize("seeds", chunks(SCHEDULES, OF_CI, CHUNK))
def test_no_promise_is_broken(seeds: range) -> None:
    """No schedule has a finding; `--shares --seed N --shrink` shows how one fails."""
    assert not failures(draw_shares, seeds)


@pytest.mark.parametrize("seeds", chunks(RECEIVED, RECEIVED_OF_CI, CHUNK))
def test_outcomes_that_are_taken_early_break_no_promise(seeds: range) -> None:
    """`confirm: received`; `--received --seed N` shows how one fails."""
    assert not failures(draw_received, seeds)


@pytest.mark.parametrize("seeds", chunks(HAND_OVERS, HAND_OVERS_OF_CI, CHUNK))
def test_planned_take_overs_break_no_promise(seeds: range) -> None:
    """Nodes stop and join while records wait; `--hand-overs --seed N` shows how one fails."""
    failed, taken = {}, 0
    for seed in seeds:
        outcome = play(draw_hand_overs(seed), level=logging.INFO)
        taken += sum("goes on from another node" in line for line in outcome.story)
        if outcome.breaches:
            failed[seed] = outcome.breaches[0]

    assert not failed
    assert taken >= CHUNK


def test_one_seed_is_one_run() -> None:
    """Two runs of a seed have equal stories, so that a failure comes again."""
    first, again = (play(draw_shares(3), level=logging.INFO) for _ in range(2))
    assert first.story == again.story
    assert first.counts == again.counts
    assert first.counts["works"] > 0


@pytest.mark.parametrize("name", FOUND_IN)
def test_a_mistake_is_found(name: str) -> None:
    """A mistake that breaks a promise breaks a run: the simulation can fail."""
    mutation = next(each for each in SHARES if each.name == name)
    with mutation.apply():
        found = [each for seed in FOUND_IN[name] for each in play(draw_shares(seed)).breaches]

    assert found
    assert not any("TypeError" in each or "AttributeError" in each for each in found)


def test_what_a_member_finds_is_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that a member cannot have is a finding of the run, and no silence of a task."""

    def give(*_: Any) -> list[Work]:
        raise AssertionError("records not in order")

    monkeypatch.setattr(ShareLife, "_give", give)

    found = play(draw_shares(0)).breaches

    assert any("records not in order" in each for each in found)


def test_each_mistake_is_looked_for() -> None:
    """All mistakes have schedules that find them."""
    assert set(FOUND_IN) == {each.name for each in SHARES}
