"""Members of the consumer protocol and a naive coordinator, over a network that loses messages.

A seed is a course of some hundred steps; Hypothesis draws seeds, and a failure names its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from keylane.client.group.consumer_protocol import ConsumerMember, MemberPhase
from keylane.client.group.effects import GroupFailed, PartsAssigned, PartsLost, RevokeRequested
from keylane.client.group.heartbeats import (
    HeartbeatAnswer,
    HeartbeatRequest,
    heartbeat_entity,
)
from keylane.client.group.settings import GroupSettings
from keylane.client.values import TopicPartition
from tests.reference.consumer_coordinator import ConsumerTwin, Times
from tests.reference.epoch_coordinator import TOPIC_ID, ConsumerCoordinator

PARTITIONS = 6
SESSION_S, POLL_S = 10.0, 30.0
MEMBERS_MAX = 4
STEPS = 400


class KafkaCoordinator:
    """The twin of Kafka's coordinator, with the naive one's interface; no rebalance time-out."""

    def __init__(self, partitions: int, session_s: float) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.twin = ConsumerTwin(self.after, lambda: self.now_s, lambda _: (TOPIC_ID, partitions))
        self.twin.times = Times(session_s=session_s, heartbeat_s=1.0)

    @property
    def members(self) -> Collection[str]:
        return self.twin.members

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.timers, (self.now_s + seconds, next(self.order), do))

    def remove(self, member_id: str) -> None:
        self.twin._remove(self.twin.members[member_id])

    def replan(self) -> None:
        self.twin.target = {}
        self.twin.epoch += 1

    def expire(self, now_s: float) -> None:
        while self.timers and self.timers[0][0] <= now_s:
            self.now_s, _, do = heapq.heappop(self.timers)
            do()
        self.now_s = now_s

    def heartbeat(self, request: HeartbeatRequest, now_s: float) -> HeartbeatAnswer:
        self.now_s = now_s
        answers: list[dict[str, Any]] = []
        self.twin.heartbeat(heartbeat_entity(request, 1), answers.append, version=1)
        (values,) = answers
        assignment = values.get("assignment")
        return HeartbeatAnswer(
            code=values.get("error_code", 0),
            member_id=values.get("member_id"),
            epoch=values.get("member_epoch", -1),
            interval_s=values.get("heartbeat_interval", 0) / 1000,
            assignment=None if assignment is None else _parts(assignment["topic_partitions"]),
        )


def _parts(topics: list[dict[str, Any]]) -> tuple[tuple[UUID, int, None], ...]:
    return tuple((each["topic_id"], index, None) for each in topics for index in each["partitions"])


class OneName:
    """The topic's name."""

    def topic_name(self, topic_id: UUID) -> str | None:
        return "t" if topic_id == TOPIC_ID else None


@dataclass
class Player:
    """A member, its application's view, and its one message on the network."""

    machine: ConsumerMember
    asked: HeartbeatRequest | None = None
    answer: HeartbeatAnswer | None = None
    view: set[TopicPartition] = field(default_factory=set)
    revoking: dict[TopicPartition, float] = field(default_factory=dict)
    polls: bool = True
    is_cut_off: bool = False
    is_removed: bool = False
    """An operator has removed it, of which it knows nothing yet: its parts may be elsewhere."""


class ConsumerGroupWorld:
    """No partition at two members; no part goes before its release or deadline; all end owned."""

    def __init__(self, seed: int, coordinator: ConsumerCoordinator | KafkaCoordinator) -> None:
        self.chance = Random(seed)
        self.now_s = 0.0
        self.coordinator = coordinator
        self.players: list[Player] = []
        self.member_count = 0

    def step(self) -> None:
        """One thing that happens."""
        rare = [self.join, self.leave, self.kill, self.toggle_poll, self.remove]
        rare += [self.cut, self.cut, self.hold_on]
        often = [self.exchange] * 6 + [self.release] * 3 + [self.advance] * 3 + [self.replan]
        if self.players:
            self.chance.choice(rare + often * 2)()
        else:
            self.join()
        for player in self.players:
            player.machine.held.check()
        self.check_owners()

    # -- the world's course --

    def join(self) -> None:
        if len(self.players) == MEMBERS_MAX:
            return
        group = GroupSettings(
            group_id="g",
            topics=frozenset({"t"}),
            session_timeout_s=SESSION_S,
            rebalance_timeout_s=POLL_S,
        )
        self.member_count += 1
        machine = ConsumerMember(group, f"m{self.member_count}", OneName(), now_s=self.now_s)
        self.players.append(Player(machine))

    def leave(self) -> None:
        player = self.chance.choice(self.players)
        player.machine.leave(self.now_s)
        player.view, player.revoking = set(), {}
        player.polls = False

    def kill(self) -> None:
        self.players.remove(self.chance.choice(self.players))

    def toggle_poll(self) -> None:
        player = self.chance.choice(self.players)
        player.polls = not player.polls

    def cut(self) -> None:
        player = self.chance.choice(self.players)
        player.is_cut_off = not player.is_cut_off

    def exchange(self) -> None:
        player = self.chance.choice(self.players)
        if player.answer is not None and not player.is_cut_off:
            self.receive(player)
        else:
            loses = self.chance.choice(["no"] * 6 + ["request", "answer"])
            self.send(player, "request" if player.is_cut_off else loses)

    def release(self) -> None:
        player = self.chance.choice(self.players)
        numbers = self.chance.sample(range(PARTITIONS), 2)
        self.give_up(player, {TopicPartition("t", number) for number in numbers})

    def advance(self) -> None:
        self.move_to(self.now_s + self.chance.choice([0.1, 0.3, 1.0, 4.0, 11.0]))

    def hold_on(self) -> None:
        """Heartbeats go on for a time in which no application releases anything."""
        for _ in range(self.chance.randrange(20)):
            self.move_to(self.now_s + 2.0)
            for player in self.players:
                if player.answer is not None and not player.is_cut_off:
                    self.receive(player)
                self.send(player, "request" if player.is_cut_off else "no")
                self.check_owners()

    def remove(self) -> None:
        player = self.chance.choice(self.players)
        if player.machine.member.member_id in self.coordinator.members:
            self.coordinator.remove(player.machine.member.member_id)
            player.is_removed = True

    def replan(self) -> None:
        self.coordinator.replan()

    # -- steps --

    def send(self, player: Player, loses: str) -> None:
        if player.asked is not None:
            return
        request = player.machine.request(self.now_s)
        if request is None:
            return
        answer = None
        if loses != "request":
            answer = self.coordinator.heartbeat(request, self.now_s)
        if loses == "no":
            player.asked, player.answer = request, answer
        else:
            player.machine.failed(self.now_s)
            self.watch(player)

    def receive(self, player: Player) -> None:
        answer, player.answer, player.asked = player.answer, None, None
        assert answer is not None
        player.machine.answered(answer, self.now_s)
        player.is_removed = player.is_removed and bool(player.machine.held.owned)
        self.watch(player)

    def give_up(self, player: Player, parts: set[TopicPartition]) -> None:
        given_up = parts & player.revoking.keys()
        for part in given_up:
            del player.revoking[part]
        player.view -= given_up
        player.machine.release(parts, self.now_s)
        self.watch(player)

    def move_to(self, until_s: float) -> None:
        """Pass time from one due moment to the next; a member's clock is no later than others."""
        while True:
            due = [player.machine.next_s for player in self.players]
            following_s = min((each for each in due if each > self.now_s), default=math.inf)
            self.now_s = min(following_s, until_s)
            for player in self.players:
                player.machine.tick(self.now_s)
                if player.polls:
                    player.machine.note_poll(self.now_s)
                self.watch(player)
            self.coordinator.expire(self.now_s)
            if self.now_s >= until_s:
                return

    def watch(self, player: Player) -> None:
        """Take the effects as an application does, and check that each has its cause."""
        for effect in player.machine.take_effects():
            if isinstance(effect, PartsAssigned):
                assert not player.view & effect.parts.keys()
                player.view |= effect.parts.keys()
            elif isinstance(effect, RevokeRequested):
                assert effect.parts <= player.view
                assert effect.deadline_s <= self.now_s + POLL_S
                player.revoking.update(dict.fromkeys(effect.parts, effect.deadline_s))
            elif isinstance(effect, PartsLost):
                assert effect.parts <= player.view
                deadlines = [player.revoking.get(part, math.inf) for part in effect.parts]
                is_ended = player.machine.phase is not MemberPhase.STABLE
                assert max(deadlines) <= self.now_s or (is_ended and effect.parts == player.view)
                player.view -= effect.parts
                for part in effect.parts:
                    player.revoking.pop(part, None)
            assert not isinstance(effect, GroupFailed), effect
        assert player.view == player.machine.held.owned.keys()
        assert player.revoking.keys() == player.machine.held.revoking

    # -- conditions --

    def check_owners(self) -> None:
        owners: dict[TopicPartition, int] = {}
        for number, player in enumerate(self.players):
            for part in () if player.is_removed else player.machine.held.owned:
                assert owners.setdefault(part, number) == number, f"{part} at two members"

    def settle(self) -> None:
        """Without faults, in the end each partition is at a member that polls."""
        for player in self.players:
            player.is_cut_off = False
        for _ in range(400):
            for player in self.players:
                self.send(player, "no")
                if player.answer is not None:
                    self.receive(player)
                self.give_up(player, set(player.revoking))
                self.check_owners()
            self.move_to(self.now_s + 0.25)
        living = [player for player in self.players if player.polls]
        living = [each for each in living if each.machine.phase is not MemberPhase.IDLE]
        owned = [part.partition for player in living for part in player.machine.held.owned]
        assert sorted(owned) == (list(range(PARTITIONS)) if living else [])


def play(seed: int, coordinator: ConsumerCoordinator | KafkaCoordinator) -> None:
    world = ConsumerGroupWorld(seed, coordinator)
    for _ in range(STEPS):
        world.step()
    world.settle()


@given(seed=st.integers(0, 2**32))
def test_a_partition_has_one_member_and_all_are_owned_in_the_end(seed: int) -> None:
    """Joins, leaves, kills, lost messages, cut-off members and new plans: one owner at a time."""
    play(seed, ConsumerCoordinator(PARTITIONS, SESSION_S, POLL_S))


@given(seed=st.integers(0, 2**32))
def test_so_it_is_with_kafkas_own_rules(seed: int) -> None:
    """The same against the twin of Kafka's coordinator, which plans at most once in a second."""
    play(seed, KafkaCoordinator(PARTITIONS, SESSION_S))
