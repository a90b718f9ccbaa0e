"""Counters of what members have got, bounded in pairs of group and topic."""

from __future__ import annotations

from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.tallies import GROUP_CHARS_MAX, OTHERS, PAIRS_MAX, ShareTallies
from keylane.wire.share import Acquired
from tests.reference.share_windows import ORDERS


def place(group: str) -> SharedPlace:
    return SharedPlace(group, "orders", ORDERS, 0)


def test_records_that_come_again_count_twice() -> None:
    """Once in all, once among those that were delivered before."""
    tallies = ShareTallies()

    tallies.note(place("g"), [Acquired(0, 9, 1), Acquired(12, 12, 4)])
    tallies.note(place("g"), [Acquired(10, 10, 2)])

    assert tallies.handed_out == {("g", "orders"): 12}
    assert tallies.redelivered == {("g", "orders"): 2}


def test_the_number_of_pairs_is_bounded() -> None:
    """What comes later shares one; a pair that is known goes on."""
    tallies = ShareTallies()
    for number in range(PAIRS_MAX + 5):
        tallies.note(place(f"g{number}"), [Acquired(0, 0, 1)])

    tallies.note(place("g0"), [Acquired(1, 1, 1)])

    assert len(tallies.handed_out) == PAIRS_MAX + 1
    assert tallies.handed_out[OTHERS, OTHERS] == 5
    assert tallies.handed_out["g0", "orders"] == 2


def test_a_long_group_id_is_cut() -> None:
    """A label is bounded."""
    tallies = ShareTallies()

    tallies.note(place("x" * 400), [Acquired(0, 0, 1)])

    assert list(tallies.handed_out) == [("x" * GROUP_CHARS_MAX, "orders")]
