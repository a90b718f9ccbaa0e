"""Readers under lane names: bounded by user and in all, the longest idle go first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from keylane.proxy.lanes.reader_limit import (
    IDLE_S,
    NAME_IDLE_S,
    READER_LANES_MIN,
    TOO_MANY_LANES,
    ReaderRoom,
)

LATER_S = 2 * IDLE_S


class Bench:
    """A room whose readers are pairs of name and partition."""

    def __init__(self, names_max: int = 4, lanes_max: int = 4 * 160) -> None:
        self.closed: list[tuple[str, int]] = []
        self.busy: set[tuple[str, int]] = set()
        self.room = ReaderRoom[tuple[str, int]](
            names_max=names_max,
            lanes_max=lanes_max,
            is_busy=self.busy.__contains__,
            close=self.closed.append,
        )

    def enter(
        self, name: str, partition: int = 0, *, user: str = "a", lanes: int = 16, now_s: float = 0.0
    ) -> int:
        code = self.room.enter(user, name, (name, partition), lanes, now_s)
        self.room.check()
        return code


def test_a_topic_of_many_partitions_is_one_name() -> None:
    """Partitions count by their lanes, not against the bound of names."""
    bench = Bench(names_max=1, lanes_max=2 * 1000 * READER_LANES_MIN)

    codes = {bench.enter("t.lanes-4", partition, lanes=4) for partition in range(1000)}

    assert codes == {0} and len(bench.room) == 1000
    assert bench.room.lanes == 1000 * READER_LANES_MIN


def test_names_beyond_the_bound_are_refused_until_one_is_idle() -> None:
    """Then that one's readers are closed, and its place is taken."""
    bench = Bench(names_max=2)
    bench.enter("t.lanes-1")
    bench.enter("t.lanes-2")

    at_once = bench.enter("t.lanes-3", now_s=1.0)
    again = bench.enter("t.lanes-2", now_s=LATER_S)
    later = bench.enter("t.lanes-3", now_s=LATER_S)

    assert (at_once, again, later) == (TOO_MANY_LANES, 0, 0)
    assert bench.closed == [("t.lanes-1", 0)] and bench.room.refused == 1


def test_a_name_that_is_waited_for_stays() -> None:
    """A long poll names nothing meanwhile, and is no reason to close its reader."""
    bench = Bench(names_max=1)
    bench.enter("t.lanes-1")
    bench.busy.add(("t.lanes-1", 0))

    code = bench.enter("t.lanes-2", now_s=LATER_S)

    assert code == TOO_MANY_LANES and not bench.closed


def test_one_user_leaves_a_quarter_to_the_others() -> None:
    """Beyond his share his own idle readers give way, never those of others."""
    bench = Bench(lanes_max=4 * 16)
    for partition in range(3):
        bench.enter("t.lanes-16", partition)

    refused = bench.enter("t.lanes-16", 3)
    other = bench.enter("u.lanes-16", 0, user="b", now_s=LATER_S)
    later = bench.enter("t.lanes-16", 3, now_s=LATER_S)

    assert (refused, other, later) == (TOO_MANY_LANES, 0, 0)
    assert bench.closed == [("t.lanes-16", 0)]


def test_a_full_node_has_clients_come_again() -> None:
    """It is not their doing: they ask again, and get in when something is idle."""
    bench = Bench(lanes_max=2 * 16)
    bench.enter("t.lanes-16", user="a")
    bench.enter("u.lanes-16", user="b", now_s=1.0)

    full = bench.enter("v.lanes-16", user="c", now_s=1.0)
    later = bench.enter("v.lanes-16", user="c", now_s=LATER_S)

    assert (full, later) == (ErrorCode.not_leader_or_follower, 0)
    assert bench.closed == [("t.lanes-16", 0)], "the longest idle of all"


def test_a_reader_counts_for_the_group_that_still_uses_it() -> None:
    """Two groups read by one name; the first of them stops."""
    bench = Bench(lanes_max=4 * 16)
    bench.enter("t.lanes-16", user="a")
    bench.enter("t.lanes-16", user="b")

    bench.enter("t.lanes-16", user="b", now_s=LATER_S)
    bench.room.sweep(NAME_IDLE_S + 1)
    first = bench.enter("x.lanes-16", 0, user="a", now_s=NAME_IDLE_S + 1)
    second = bench.enter("x.lanes-16", 1, user="a", now_s=NAME_IDLE_S + 1)

    assert (first, second) == (0, 0) and not bench.closed


def test_nothing_is_left_of_readers_that_are_closed() -> None:
    """Users come without end: what is known of each ends with his last name."""
    bench = Bench()
    for number in range(50):
        bench.enter("t.lanes-1", number % 3, user=f"u{number}", now_s=number * LATER_S)

    for partition in range(3):
        bench.room.leave(("t.lanes-1", partition))
    bench.room.sweep(51 * LATER_S + NAME_IDLE_S)

    assert len(bench.room) == bench.room.lanes == 0
    assert not bench.room._users


steps = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["n1", "n2", "n3"]),
        st.integers(0, 3),
        st.sampled_from([1, 16, 40]),
        st.sampled_from([0.0, 1.0, LATER_S]),
        st.booleans(),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 3), st.integers(1, 12))
def test_the_bounds_hold_whatever_is_asked(
    asked: list[tuple[str, str, int, int, float, bool]], names_max: int, sixteens: int
) -> None:
    """A naive count of what was let in and not closed is what the room counts."""
    bench = Bench(names_max, sixteens * 16)
    now_s, costs = 0.0, dict[tuple[str, int], int]()
    for user, name, partition, lanes, passed_s, closes in asked:
        now_s += passed_s
        key = (name, partition)
        if closes:
            bench.room.leave(key)
            costs.pop(key, None)
        before = len(bench.closed)
        code = bench.enter(name, partition, user=user, lanes=lanes, now_s=now_s)
        for gone in bench.closed[before:]:
            costs.pop(gone, None)
        if code == 0:
            costs.setdefault(key, max(lanes, 16))
        bench.room.sweep(now_s)
        bench.room.check()
    assert bench.room.lanes <= sixteens * 16 and len(bench.room) == len(costs)
    assert max((each.lanes for each in bench.room._users.values()), default=0) <= sixteens * 12
