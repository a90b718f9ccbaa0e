"""Legal histories of any shape hold no breach; one that is planted in them is found."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from tests.long.chaos_history import (
    Answer,
    ClusterHistory,
    Commit,
    Delivery,
    Event,
    Fetched,
    GroupHistory,
    Log,
    OutOfRange,
    Place,
    Produced,
    Reset,
)
from tests.long.chaos_judge import Verdict, judge

LANE = Place("t", 0)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["produce", "produce", "poll", "poll", "commit", "unanswered", "join", "zombie", "cut"]
        ),
        st.integers(0, 3),
    ),
    min_size=10,
    max_size=80,
)


class World:
    """One lane, its log, and a group that does what a correct one may do."""

    def __init__(self, *, is_safe: bool) -> None:
        self.is_safe, self.at_s, self.generation, self.number = is_safe, 0.0, 0, 0
        self.log: list[int] = []
        self.produced: list[Produced] = []
        self.events: list[Event] = []
        self.committed = -1
        self.positions: dict[str, int] = {}
        """Of each member that has ever held the lane; the last one holds it."""
        self.join(0)

    def tick(self) -> float:
        self.at_s += 1.0
        return self.at_s

    @property
    def owner(self) -> str:
        return f"m{self.generation}"

    def produce(self, count: int) -> None:
        for _ in range(count + 1):
            self.log.append(self.number)
            offset = len(self.log) - 1
            self.produced.append(Produced("t", 0, offset, "k", self.number, self.tick()))
            self.number += 1

    def poll(self, count: int, member: str | None = None) -> None:
        member = member or self.owner
        first = self.positions[member]
        if first > len(self.log):
            self.events.append(OutOfRange(member, LANE, first, self.tick()))
            self.events.append(Reset(member, LANE, self.tick()))
            first = 0
        self.events.append(Fetched(member, LANE, first, self.tick(), is_first=False))
        for offset in range(first, min(first + count + 1, len(self.log))):
            number = self.log[offset]
            self.events.append(Delivery(member, LANE, offset, "k", number, self.at_s))
            first = offset + 1
        self.positions[member] = first

    def commit(self, _: int, *, is_answered: bool = True) -> None:
        asked_s, offset = self.tick(), self.positions[self.owner]
        answered_s = self.tick() if is_answered else inf
        self.events.append(Commit(self.owner, LANE, offset, self.generation, asked_s, answered_s))
        if is_answered:
            self.committed = offset

    def unanswered(self, _: int) -> None:
        self.commit(0, is_answered=False)

    def join(self, _: int) -> None:
        self.generation += 1
        asked_s = self.tick()
        self.events.append(Answer(self.owner, LANE, self.committed, asked_s, self.tick()))
        self.positions[self.owner] = max(self.committed, 0)

    def zombie(self, back: int) -> None:
        """One that was given up is handed what it has, before the owner commits beyond it."""
        member = f"m{max(1, self.generation - back)}"
        self.poll(1, member)

    def cut(self, count: int) -> None:
        """Unclean leader; keylane puts what is committed to the cut, members reset."""
        if self.is_safe or not self.log:
            return
        end = max(0, len(self.log) - count - 1)
        del self.log[end:]
        self.committed = min(self.committed, end)
        self.produce(0)
        for member, position in self.positions.items():
            if position > end:
                self.events.append(Reset(member, LANE, self.tick()))
                self.positions[member] = 0

    def end(self) -> Verdict:
        self.join(0)
        self.poll(len(self.log))
        seen = [
            Produced("t", 0, each.offset, each.key, each.number, each.at_s)
            for each in self.events
            if isinstance(each, Delivery) and not self.is_safe
        ]
        kept = ClusterHistory(
            produced=self.produced,
            logs={("t", 0): Log(0, {at: ("k", number) for at, number in enumerate(self.log)})},
            safe_topics=frozenset({"t"} if self.is_safe else ()),
            seen=seen,
        )
        group = GroupHistory(
            group="g",
            partitions={"t": 1},
            lane_of=lambda topic, partition, key: 0,
            events=self.events,
        )
        return judge(kept, group)


@given(steps=STEPS, is_safe=st.booleans())
def test_a_legal_history_holds_no_breach(steps, is_safe) -> None:
    """Whatever is produced, committed, taken over, held by a zombie, or cut."""
    world = World(is_safe=is_safe)

    for name, count in steps:
        getattr(world, name)(count)

    assert world.end().breaches == []


@given(steps=STEPS, less=st.integers(1, 5))
def test_an_answer_below_a_commit_is_found(steps, less) -> None:
    """Any history of a safe topic, then a commit, and an answer that forgets some of it."""
    world = World(is_safe=True)
    for name, count in steps:
        getattr(world, name)(count)
    world.produce(less)
    world.poll(len(world.log))
    world.commit(0)

    world.committed -= less
    world.join(0)

    assert "below" in {each.kind for each in world.end().breaches}


@given(steps=STEPS, back=st.integers(0, 3), more=st.integers(0, 3))
def test_a_commit_of_a_log_that_was_cut_is_noted(steps, back, more) -> None:
    """Any history of a topic that may be cut, then a cut that nothing takes note of."""
    world = World(is_safe=False)
    for name, count in steps:
        getattr(world, name)(count)
    world.produce(3)
    world.poll(len(world.log))
    world.commit(0)

    committed = world.committed
    world.cut(back)
    world.committed = committed
    world.produce(back + more)
    world.join(0)

    assert "kept" in {each.kind for each in world.end().notes}
