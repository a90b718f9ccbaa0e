"""Members of a classic group and a naive coordinator, over a network that loses messages.

A seed is a course of some hundred steps; Hypothesis draws seeds, and a failure names its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keylane.client.group.classic import ClassicMember, ClassicPhase
from keylane.client.group.classic_calls import (
    VERSIONS_MAX,
    ClassicAnswer,
    ClassicCall,
    ClassicJoin,
    call_entity,
)
from keylane.client.group.effects import GroupFailed, PartsAssigned, PartsLost, RevokeRequested
from keylane.client.group.settings import GroupSettings, GroupTopics
from keylane.client.values import TopicPartition
from tests.reference.group_coordinator import GroupTwin

PARTITIONS = 6
SESSION_S = 10.0
"""Also the rebalance time-out, as the twin has one for both."""
MEMBERS_MAX = 4
STEPS = 300


@dataclass
class Seat:
    """A member, its application's view, and its one message on the network."""

    machine: ClassicMember
    call: ClassicCall | None = None
    answer: ClassicAnswer | None = None
    call_number: int = 0
    view: set[TopicPartition] = field(default_factory=set)
    revoking: dict[TopicPartition, float] = field(default_factory=dict)
    polls: bool = True
    is_cut_off: bool = False
    is_removed: bool = False
    """An operator has removed it, of which it knows nothing yet: its parts may be elsewhere."""


class ClassicGroupWorld:
    """No partition at two members; no part goes before its release or deadline; all end owned."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now_s = 0.0
        self.order = count()
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.coordinator = GroupTwin(self.after)
        self.seats: list[Seat] = []

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (self.now_s + seconds, next(self.order), do))

    def step(self) -> None:
        """One thing that happens."""
        rare = [self.join, self.leave, self.kill, self.toggle_poll, self.remove, self.subscribe]
        rare += [self.cut, self.cut, self.hold_on]
        often = [self.exchange] * 6 + [self.release] * 3 + [self.advance] * 3
        if self.seats:
            self.chance.choice(rare + often * 2)()
        else:
            self.join()
        self.check_owners()

    # -- the world's course --

    def join(self) -> None:
        if len(self.seats) == MEMBERS_MAX:
            return
        group = GroupSettings(
            group_id="g",
            topics=frozenset({"t"}),
            session_timeout_s=SESSION_S,
            rebalance_timeout_s=SESSION_S,
            heartbeat_interval_s=1.0,
        )
        machine = ClassicMember(group, f"m{next(self.order)}", now_s=self.now_s)
        self.seats.append(Seat(machine))

    def leave(self) -> None:
        seat = self.chance.choice(self.seats)
        seat.machine.leave(self.now_s)
        seat.view, seat.revoking = set(), {}
        seat.polls = False

    def kill(self) -> None:
        self.seats.remove(self.chance.choice(self.seats))

    def toggle_poll(self) -> None:
        seat = self.chance.choice(self.seats)
        seat.polls = not seat.polls

    def subscribe(self) -> None:
        seat = self.chance.choice(self.seats)
        if not seat.machine.is_out:
            topics = self.chance.choice([{"t"}, {"t", "none"}])
            seat.machine.subscribe(GroupTopics(frozenset(topics)), self.now_s)

    def cut(self) -> None:
        seat = self.chance.choice(self.seats)
        seat.is_cut_off = not seat.is_cut_off
        if seat.is_cut_off and seat.call is not None:
            self.break_off(seat)

    def exchange(self) -> None:
        seat = self.chance.choice(self.seats)
        if seat.answer is not None:
            self.receive(seat)
        else:
            loses = self.chance.choice(["no"] * 6 + ["request", "answer"])
            self.send(seat, "request" if seat.is_cut_off else loses)

    def hold_on(self) -> None:
        """Heartbeats go on for a time in which no application releases anything."""
        for _ in range(self.chance.randrange(10)):
            self.exchange_all()
            self.move_to(self.now_s + 0.9)

    def release(self) -> None:
        seat = self.chance.choice(self.seats)
        numbers = self.chance.sample(range(PARTITIONS), 2)
        self.give_up(seat, {TopicPartition("t", number) for number in numbers})

    def advance(self) -> None:
        self.move_to(self.now_s + self.chance.choice([0.1, 0.3, 1.0, 4.0, 11.0]))

    def remove(self) -> None:
        seat = self.chance.choice(self.seats)
        member_id = seat.machine.member.member_id
        member = self.coordinator.members.get(member_id)
        if member is not None and member.join_reply is None and member.sync_reply is None:
            seat.is_removed = True
            self.coordinator._remove(member_id)

    # -- steps --

    def send(self, seat: Seat, loses: str) -> None:
        self.count_topics(seat)
        if seat.call is not None:
            return
        call = seat.machine.request(self.now_s)
        if call is None:
            return
        seat.call, seat.call_number = call, next(self.order)
        number = seat.call_number

        def reply(values: dict[str, Any]) -> None:
            self.reply(seat, number, values)

        if loses != "request":
            entity = call_entity(call, VERSIONS_MAX[call.api_key])
            self.coordinator.handle(call.api_key, entity, reply if loses == "no" else ignore)
        if loses != "no":
            self.break_off(seat)

    def reply(self, seat: Seat, number: int, values: dict[str, Any]) -> None:
        if seat.call is None or seat.call_number != number:
            return
        seat.answer = ClassicAnswer(
            code=values.get("error_code", 0),
            member_id=values.get("member_id", ""),
            generation_id=values.get("generation_id", -1),
            leader=values.get("leader", ""),
            members=tuple((m["member_id"], None, m["metadata"]) for m in values.get("members", ())
                          if "metadata" in m),
            assignment=values.get("assignment", b""),
        )  # fmt: skip
        if isinstance(seat.call, ClassicJoin):
            self.receive(seat)  # its session begins as it is sent

    def break_off(self, seat: Seat) -> None:
        seat.call = seat.answer = None
        seat.machine.failed(self.now_s)
        self.watch(seat)

    def receive(self, seat: Seat) -> None:
        answer, seat.answer, seat.call = seat.answer, None, None
        assert answer is not None
        seat.machine.answered(answer, self.now_s)
        seat.is_removed = seat.is_removed and bool(seat.machine.held.owned)
        self.watch(seat)

    def count_topics(self, seat: Seat) -> None:
        if seat.machine.topics_to_count:
            seat.machine.counted({"t": PARTITIONS, "none": 0}, self.now_s)

    def give_up(self, seat: Seat, parts: set[TopicPartition]) -> None:
        given_up = parts & seat.revoking.keys()
        for part in given_up:
            del seat.revoking[part]
        seat.view -= given_up
        seat.machine.release(parts, self.now_s)
        self.watch(seat)

    def exchange_all(self) -> None:
        for seat in self.seats:
            if seat.answer is not None:
                self.receive(seat)
            self.send(seat, "request" if seat.is_cut_off else "no")
            self.check_owners()

    def move_to(self, until_s: float) -> None:
        """Pass time from one due moment to the next; a member's clock is no later than others."""
        while True:
            due = [seat.machine.next_s for seat in self.seats]
            due += [self.timers[0][0]] if self.timers else []
            following_s = min((each for each in due if each > self.now_s), default=math.inf)
            self.now_s = min(following_s, until_s)
            for seat in self.seats:
                seat.machine.tick(self.now_s)
                if seat.polls:
                    seat.machine.note_poll(self.now_s)
                self.watch(seat)
            while self.timers and self.timers[0][0] <= self.now_s:
                heapq.heappop(self.timers)[2]()
            if self.now_s >= until_s:
                return

    def watch(self, seat: Seat) -> None:
        """Take the effects as an application does, and check that each has its cause."""
        for effect in seat.machine.take_effects():
            if isinstance(effect, PartsAssigned):
                assert not seat.view & effect.parts.keys()
                seat.view |= effect.parts.keys()
            elif isinstance(effect, RevokeRequested):
                assert effect.parts <= seat.view
                seat.revoking.update(dict.fromkeys(effect.parts, effect.deadline_s))
            elif isinstance(effect, PartsLost):
                assert effect.parts <= seat.view
                deadlines = [seat.revoking.get(part, math.inf) for part in effect.parts]
                is_ended = seat.machine.phase is not ClassicPhase.STABLE
                assert max(deadlines) <= self.now_s or (is_ended and effect.parts == seat.view)
                seat.view -= effect.parts
                for part in effect.parts:
                    seat.revoking.pop(part, None)
            assert not isinstance(effect, GroupFailed), effect
        assert seat.view == seat.machine.held.owned.keys()
        assert seat.revoking.keys() == seat.machine.held.revoking

    # -- conditions --

    def check_owners(self) -> None:
        owners: dict[TopicPartition, int] = {}
        for number, seat in enumerate(self.seats):
            seat.machine.held.check()
            for part in () if seat.is_removed else seat.machine.held.owned:
                assert owners.setdefault(part, number) == number, f"{part} at two members"

    def settle(self) -> None:
        """Without faults, in the end each partition is at a member that polls."""
        for seat in self.seats:
            seat.is_cut_off = False
        for _ in range(400):
            self.exchange_all()
            for seat in self.seats:
                self.give_up(seat, set(seat.revoking))
            self.move_to(self.now_s + 0.2)
        living = [seat for seat in self.seats if seat.polls]
        living = [each for each in living if each.machine.phase is not ClassicPhase.IDLE]
        owned = [part.partition for seat in living for part in seat.machine.held.owned]
        assert sorted(owned) == (list(range(PARTITIONS)) if living else [])


def ignore(_values: dict[str, Any]) -> None:
    """Lose an answer."""


@given(seed=st.integers(0, 2**32))
def test_a_classic_group_has_one_member_for_a_partition_and_ends_whole(seed: int) -> None:
    """Joins, leaves, kills, lost messages, cut-off members, delays: one owner at a time."""
    world = ClassicGroupWorld(seed)

    for _ in range(STEPS):
        world.step()

    world.settle()
