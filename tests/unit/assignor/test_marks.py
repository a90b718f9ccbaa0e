"""Marks of members behind keylane: taken away as they were put on, and harmless to assignors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.assignor.marks import LaneCounts, mark, unmark
from keylane.assignor.protocol import read_names, read_subscription
from tests.transcript.consumer_protocol import sticky_data, subscription

COUNTS = {"orders": LaneCounts("orders", 2), "bills.lanes-4": LaneCounts("bills", 3)}
TOPICS = ("plain", "orders", "bills.lanes-4")


@given(
    version=st.integers(0, 4),
    user_data=st.none() | st.binary(max_size=9),
    plain=st.lists(st.integers(0, 9), max_size=3),
    lanes=st.lists(st.tuples(st.sampled_from(["orders", "bills.lanes-4"]), st.integers(0, 31))),
    later=st.binary(max_size=9),
    protocol=st.sampled_from(["range", "sticky", "cooperative-sticky"]),
)
def test_a_mark_is_taken_away_and_nothing_else_is_touched(
    version, user_data, plain, lanes, later, protocol
) -> None:
    """The subscription is byte for byte the member's, with fields of versions to come."""
    owned = [("plain", index) for index in plain] + sorted(lanes)
    metadata = subscription(*TOPICS, version=version, user_data=user_data, owned=owned) + later

    marked = mark(metadata, protocol, COUNTS.get)

    assert unmark(marked) == metadata
    assert unmark(metadata) is None
    assert read_names(marked) == TOPICS


@given(st.binary(max_size=30))
def test_what_is_no_subscription_is_marked_as_well(metadata) -> None:
    """A member whose subscription cannot be read is not taken for one at the broker's address."""
    assert unmark(mark(metadata, "range", COUNTS.get)) == metadata


def test_a_leader_at_the_brokers_address_sees_partitions() -> None:
    """Each owner of a lane owns its partition, under the broker's name of the topic."""
    lanes = [("bills.lanes-4", index) for index in (0, 3, 7)] + [("orders", 5), ("plain", 1)]
    metadata = subscription(*TOPICS, version=3, owned=lanes, generation_id=7, rack="r")

    seen = read_subscription(mark(metadata, "cooperative-sticky", COUNTS.get))

    owned = [lane for lane in seen.owned if ":" not in lane[0]]
    assert sorted(owned) == [("bills", 0), ("bills", 1), ("orders", 1), ("plain", 1)]
    assert (seen.generation_id, seen.rack) == (7, "r")


def test_sticky_user_data_has_one_owner_of_a_partition() -> None:
    """It is the owner of the first lane; keylane reads all lanes again."""
    data = sticky_data([("orders", 1), ("orders", 2), ("plain", 0)], 5)
    metadata = subscription("orders", "plain", user_data=data)

    marked = mark(metadata, "sticky", COUNTS.get)

    moved = sticky_data([("plain", 0), ("orders", 1), ("keylane:orders", 1)], 5)
    seen = read_subscription(marked).user_data
    assert len(seen) > len(moved) and seen[-4:] == data[-4:]
    assert b"orders\x00\x00\x00\x01\x00\x00\x00\x01" in seen
    assert unmark(marked) == subscription("orders", "plain", user_data=sticky_data(
        [("plain", 0), ("orders", 1), ("orders", 2)], 5
    ))  # fmt: skip
