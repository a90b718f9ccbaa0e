"""assignor/gain.py: the gain of a new plan, and the cases in which it is worth a rebalance."""

from __future__ import annotations

import pytest

from keylane.assignor.gain import Gain, find_gain
from keylane.assignor.level import FINE
from keylane.assignor.model import Lane, LaneTopic, Member

ORDERS = LaneTopic(name="orders", partition_count=2, lane_count=4)
LANES = [("orders", index) for index in range(8)]


def member(name: str, lanes: list[Lane]) -> Member:
    return Member(member_id=name, topics=frozenset({"orders"}), owned=tuple(lanes))


def test_a_busy_member_could_have_less() -> None:
    """Lanes 0 and 1 have half of the load, and are at one member: one of them would move."""
    members = [member("a", LANES[:4]), member("b", LANES[4:])]
    loads = {lane: 300.0 if lane in LANES[:2] else 100.0 for lane in LANES}

    gain = find_gain(members, [ORDERS], loads)

    assert gain is not None
    assert gain.busiest == pytest.approx(800 / 600, abs=0.01)
    assert gain.after == pytest.approx(1.0, abs=0.01)
    assert gain.moved_count >= 1
    assert gain.is_worth(10_000.0)


def test_one_hot_lane_is_no_reason() -> None:
    """It cannot be cut: its member alone on it is as busy as any plan makes it."""
    members = [member("a", LANES[:1]), member("b", LANES[1:])]
    loads = {lane: 9000.0 if lane == LANES[0] else 100.0 for lane in LANES}

    gain = find_gain(members, [ORDERS], loads)

    assert gain is not None
    assert gain.busiest == gain.after
    assert not gain.is_worth(1e9)


@pytest.mark.parametrize(
    "lanes_of_b", [LANES[5:], LANES[3:]], ids=["a lane is withheld", "a lane is at both"]
)
def test_a_generation_on_its_way_is_not_judged(lanes_of_b) -> None:
    """The next step of a cooperative rebalance comes without being asked for."""
    members = [member("a", LANES[:4]), member("b", lanes_of_b)]

    assert find_gain(members, [ORDERS], dict.fromkeys(LANES, 1.0)) is None


@pytest.mark.parametrize(
    ("busiest", "moved_count", "record_count", "is_worth"),
    [
        (1.09, 3, 1e9, False),  # within the margin
        (1.10, 3, 1e9, True),
        (1.50, 0, 1e9, False),  # no plan that helps
        (1.30, 3, 8 * 100, False),  # 130 records, give or take 11: 30 above is chance
        (1.30, 3, 8 * 300, True),
        (2.00, 3, 0.0, False),  # nothing was measured
    ],
)
def test_a_gain_must_be_large_and_sure(busiest, moved_count, record_count, is_worth) -> None:
    """A rebalance is asked for a tenth of the load that is no chance."""
    gain = Gain(busiest, 1.0, 1 / 8, moved_count)

    assert gain.is_worth(record_count) is is_worth


def test_a_fine_gain_is_a_hundredth_that_is_no_chance() -> None:
    """For lanes that were dealt out before their load was known."""
    assert Gain(1.01, 1.0, 1 / 8, 3).is_worth(1e9, FINE)
    assert not Gain(1.009, 1.0, 1 / 8, 3).is_worth(1e9, FINE)
    assert not Gain(1.05, 1.0, 1 / 8, 3).is_worth(8 * 5_000, FINE)  # 5,250, give or take 72
