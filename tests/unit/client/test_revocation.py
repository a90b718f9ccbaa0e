"""The two steps of a revocation: KIP-983's four traces, and key ranges of what is revoked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keylane.client.revocation import Revocations, by_ranges, parts_within
from keylane.client.values import TopicPartition
from keylane.keyrange.space import HASH_MAX, KeyRange, split_even
from keylane.wire.extensions import LaneRange

UNITS = st.frozensets(st.sampled_from(["p0", "p1", "p2", "p3"]))
State = tuple[set[str], set[str], set[str]]


def state(revocations: Revocations[str]) -> State:
    return set(revocations.to_be_revoked), set(revocations._thereafter), set(revocations.lost)


def test_what_is_not_delayed_completes_with_the_next_poll() -> None:
    """Trace 1: p0 and p1 are requested in one poll and complete as the next begins."""
    revocations: Revocations[str] = Revocations()
    revocations.begin_poll()

    revocations.request(["p0", "p1"])
    assert state(revocations) == ({"p0", "p1"}, set(), set())

    assert revocations.begin_poll() == {"p0", "p1"}
    assert state(revocations) == (set(), set(), set())


def test_a_delayed_unit_completes_one_poll_later() -> None:
    """Trace 2: p0 is delayed once, p1 is not."""
    revocations: Revocations[str] = Revocations()
    revocations.begin_poll()
    revocations.request(["p0", "p1"])

    assert revocations.delay(["p0"])
    assert state(revocations) == ({"p1"}, {"p0"}, set())

    assert revocations.begin_poll() == {"p1"}
    assert state(revocations) == ({"p0"}, set(), set())

    assert revocations.begin_poll() == {"p0"}
    assert state(revocations) == (set(), set(), set())


def test_a_lost_unit_cannot_be_delayed() -> None:
    """Trace 3: p0 is delayed, then lost: the next delay is refused, and no poll completes it."""
    revocations: Revocations[str] = Revocations()
    revocations.begin_poll()
    revocations.request(["p0"])
    assert state(revocations) == ({"p0"}, set(), set())
    assert revocations.delay(["p0"])
    assert state(revocations) == (set(), {"p0"}, set())

    assert revocations.begin_poll() == frozenset()
    assert state(revocations) == ({"p0"}, set(), set())
    revocations.lose(["p0"])
    assert state(revocations) == (set(), set(), {"p0"})
    assert not revocations.delay(["p0"])
    assert state(revocations) == (set(), set(), {"p0"})

    assert revocations.begin_poll() == frozenset()
    assert state(revocations) == (set(), set(), set())


def test_a_unit_can_be_delayed_again_and_again() -> None:
    """Trace 4: p0 is delayed in two polls, while p1 is requested and completes."""
    revocations: Revocations[str] = Revocations()
    revocations.begin_poll()
    revocations.request(["p0"])
    assert revocations.delay(["p0"])
    assert state(revocations) == (set(), {"p0"}, set())

    assert revocations.begin_poll() == frozenset()
    revocations.request(["p1"])
    assert state(revocations) == ({"p0", "p1"}, set(), set())
    assert revocations.delay(["p0"])
    assert state(revocations) == ({"p1"}, {"p0"}, set())

    assert revocations.begin_poll() == {"p1"}
    assert state(revocations) == ({"p0"}, set(), set())


def test_owned_units_are_delayed_beside_a_lost_one() -> None:
    """A delay that names a lost unit returns False, and still keeps the others."""
    revocations: Revocations[str] = Revocations()
    revocations.request(["p0", "p1"])
    revocations.lose(["p0"])

    assert not revocations.delay(["p0", "p1", "never asked for"])

    assert state(revocations) == (set(), {"p1"}, {"p0"})


class NaiveRevocations:
    """A list of units with the number of polls until each one goes; 0 is lost."""

    def __init__(self) -> None:
        self.polls_left: dict[str, int] = {}

    def begin_poll(self) -> set[str]:
        done = {unit for unit, left in self.polls_left.items() if left == 1}
        kept = {unit: 1 for unit, left in self.polls_left.items() if left == 2}
        self.polls_left = kept
        return done

    def request(self, unit: str) -> None:
        if self.polls_left.get(unit, 0) != 2:
            self.polls_left[unit] = 1

    def delay(self, unit: str) -> bool:
        if unit in self.polls_left and self.polls_left[unit] > 0:
            self.polls_left[unit] = 2
        return self.polls_left.get(unit) != 0


class TwinnedRevocations(RuleBasedStateMachine):
    """Any sequence of calls gives what the naive twin gives."""

    def __init__(self) -> None:
        super().__init__()
        self.real: Revocations[str] = Revocations()
        self.twin = NaiveRevocations()

    @rule()
    def begin_poll(self) -> None:
        assert self.real.begin_poll() == self.twin.begin_poll()

    @rule(units=UNITS)
    def request(self, units: frozenset[str]) -> None:
        self.real.request(units)
        for unit in units:
            self.twin.request(unit)

    @rule(units=UNITS)
    def lose(self, units: frozenset[str]) -> None:
        self.real.lose(units)
        for unit in units:
            self.twin.polls_left[unit] = 0

    @rule(units=UNITS)
    def delay(self, units: frozenset[str]) -> None:
        kept = [self.twin.delay(unit) for unit in units]
        assert self.real.delay(units) == all(kept)

    @rule(units=UNITS)
    def drop(self, units: frozenset[str]) -> None:
        self.real.drop(units)
        for unit in units:
            self.twin.polls_left.pop(unit, None)

    @invariant()
    def same_sets(self) -> None:
        self.real.check()
        left = self.twin.polls_left
        by_count = [{unit for unit, polls in left.items() if polls == n} for n in (1, 2, 0)]
        assert state(self.real) == tuple(by_count)
        assert self.real.pending == by_count[0] | by_count[1]


TestTwinnedRevocations = TwinnedRevocations.TestCase


def lanes(count: int) -> dict[TopicPartition, LaneRange | None]:
    """Two partitions of topic t, each cut into `count` lanes; and a plain topic."""
    found: dict[TopicPartition, LaneRange | None] = {TopicPartition("plain", 1): None}
    for number, key_range in enumerate(split_even(count)):
        for partition in (0, 1):
            index = number * 2 + partition
            found[TopicPartition("t", index)] = LaneRange(partition, key_range)
    return found


def test_lanes_of_a_partition_become_its_key_ranges() -> None:
    """Neighbours are one range; all lanes are the whole hash space; a plain one has no range."""
    table = lanes(4)
    cut = split_even(4)

    found = by_ranges([TopicPartition("t", index) for index in (0, 2, 6)], table)
    everything = by_ranges(table, table)

    expected = (KeyRange(0, cut[1].hi), cut[3])
    assert found == {TopicPartition("t", 0): expected}
    assert everything == {
        TopicPartition("plain", 1): (),
        TopicPartition("t", 0): (KeyRange(0, HASH_MAX),),
        TopicPartition("t", 1): (KeyRange(0, HASH_MAX),),
    }


@given(count=st.integers(1, 8), data=st.data())
def test_key_ranges_lead_back_to_their_lanes(count: int, data: st.DataObject) -> None:
    """parts_within(by_ranges(parts)) is the parts themselves."""
    table = lanes(count)
    parts = data.draw(st.frozensets(st.sampled_from(sorted(table))))

    assert parts_within(by_ranges(parts, table), table) == parts


def test_all_keys_of_a_partition_are_all_its_lanes() -> None:
    """() as key ranges means each lane of the partition, and no lane of another."""
    table = lanes(3)

    found = parts_within({TopicPartition("t", 1): ()}, table)

    assert found == {TopicPartition("t", index) for index in (1, 3, 5)}
