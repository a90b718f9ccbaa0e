"""A consumer on a fake node, and on a fake group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

import pytest

from keylane.client.consumer import Consumer
from keylane.client.group_link import Assignments
from keylane.client.offset_calls import CommitMember, LoneMember
from keylane.client.session import ConsumerSession
from keylane.client.values import TopicPartition
from keylane.wire.extensions import LaneRange
from tests.reference.client_node import FakeCluster


class FakeGroup:
    """A membership whose coordinator is the test."""

    def __init__(self, assignments: Assignments) -> None:
        self.assignments = assignments
        self.released: list[frozenset[TopicPartition]] = []
        self.polls = self.rejoins = 0
        self.has_left = self.is_moving = False
        self.epoch = 1
        self.wish: tuple[frozenset[str], str | None] = (frozenset(), None)

    async def start(self) -> None: ...

    async def leave(self) -> None:
        self.has_left = True

    def subscribe(self, topics: Collection[str], pattern: str | None) -> None:
        self.wish = frozenset(topics), pattern

    def release(self, parts: Collection[TopicPartition]) -> None:
        self.released.append(frozenset(parts))

    def note_poll(self) -> None:
        self.polls += 1

    async def rejoin(self) -> None:
        self.rejoins += 1
        self.epoch += 1

    async def give_way(self) -> None:
        self.rejoins += 1
        self.epoch += 1

    @property
    def member(self) -> CommitMember:
        return LoneMember("g", "m", self.epoch, is_moving=self.is_moving)

    def assign(self, parts: Mapping[TopicPartition, LaneRange | None]) -> None:
        self.assignments.on_assigned(parts)

    def ask_back(self, *parts: TopicPartition) -> None:
        self.assignments.on_revoke_requested(parts, 1e9)

    def lose(self, *parts: TopicPartition) -> None:
        self.assignments.on_lost(parts)


class Stage:
    """A started consumer and what it talks to."""

    def __init__(self, consumer: Consumer, cluster: FakeCluster) -> None:
        self.consumer, self.cluster = consumer, cluster

    @property
    def session(self) -> ConsumerSession:
        assert self.consumer._session is not None
        return self.consumer._session

    @property
    def group(self) -> FakeGroup:
        assert isinstance(self.session.group, FakeGroup)
        return self.session.group


StageFactory = Callable[..., Any]


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StageFactory]:
    """Start a consumer: `assign` is for `Consumer.assign`, other options are its own."""
    started: list[Consumer] = []

    async def start(
        cluster: FakeCluster, *topics: str, assign: Any = None, **options: Any
    ) -> Stage:
        def make_group(
            _cluster: object, assignments: Assignments, names: Collection[str], pattern: str | None
        ) -> FakeGroup:
            group = FakeGroup(assignments)
            group.subscribe(names, pattern)
            return group

        monkeypatch.setattr("keylane.client.cluster.ClusterClient", lambda _settings: cluster)
        settings: dict[str, Any] = {
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 50,
        } | options
        consumer = Consumer(*topics, **settings)
        monkeypatch.setattr(consumer, "_make_group", make_group)
        if assign is not None:
            consumer.assign(assign)
        await consumer.start()
        started.append(consumer)
        return Stage(consumer, cluster)

    yield start
    for consumer in started:
        await consumer.stop()
