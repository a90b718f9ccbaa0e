"""Questions to brokers in memory while leaders and coordinators change."""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import pytest

from keylane.advise import reader
from keylane.advise.errors import AdviceFailed
from keylane.advise.fetching import Bounds
from keylane.advise.reader import READ_COMMITTED, Scope
from keylane.client import errors as e
from keylane.client import offset_calls as calls
from keylane.client.offset_calls import FetchedOffsets
from keylane.client.reading import LATEST
from keylane.client.settings import ConsumerSettings
from keylane.client.values import Committed, TopicPartition
from keylane.errors import GroupDenied, KeylaneError
from tests.reference.batches import Batch, Record
from tests.reference.client_node import FakeCluster

TOPIC: Final = "orders"
PART: Final = TopicPartition(TOPIC, 0)


@dataclass
class Leaderless(FakeCluster):
    """The topic is known, and no broker leads it for some refreshes."""

    until: int = 1

    def leader_of(self, part: TopicPartition) -> int | None:
        return super().leader_of(part) if self.refreshes >= self.until else None


def inquiry(cluster: FakeCluster) -> Any:
    """Questions about a topic with one partition, and a group."""
    bounds = Bounds(records_max=10, bytes_max=1 << 20, seconds_max=1)
    scope = Scope(topic=TOPIC, group="billing", bounds=bounds, watch_s=0)
    settings = ConsumerSettings(isolation_level="read_committed", retry_backoff_ms=1)
    found = reader._Inquiry(cluster, settings, scope, lambda _text: None)  # type: ignore[arg-type]
    found._parts = [0]
    return found


def filled(cluster: FakeCluster) -> FakeCluster:
    """The same, with two records."""
    cluster.append(PART, Batch(0, (Record(0, b"a", b"1"), Record(1, b"b", b"2"))))
    return cluster


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between two questions to coordinators, and short elections."""
    monkeypatch.setattr(reader, "COORDINATOR_BACKOFF_S", 0)
    monkeypatch.setattr(reader, "ELECTION_S", 0.05)


async def test_a_leader_is_waited_for() -> None:
    """Its offset is that of the log's end."""
    cluster = filled(Leaderless(until=2))

    assert await inquiry(cluster)._offsets(LATEST, READ_COMMITTED) == {0: 2}
    assert cluster.refreshes == 2


async def test_a_leader_that_does_not_come_ends_the_advice() -> None:
    """After the time of an election, with the partition."""
    with pytest.raises(AdviceFailed, match="topic orders partition 0: no leader; wait until"):
        await inquiry(filled(Leaderless(until=10**9)))._offsets(LATEST, READ_COMMITTED)


async def test_a_topic_that_is_deleted_meanwhile_is_named() -> None:
    """There is no broker to wait for."""
    with pytest.raises(e.TopicUnknown, match="topic orders: no broker knows it any more"):
        await inquiry(FakeCluster())._offsets(LATEST, READ_COMMITTED)


async def test_a_coordinator_that_moves_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes and a lost connection; each has the next question look for the coordinator."""
    cluster = filled(FakeCluster())
    loading = {PART: e.COORDINATOR_LOAD_IN_PROGRESS}
    answers: deque[FetchedOffsets | KeylaneError] = deque([
        FetchedOffsets({}, {"": e.NOT_COORDINATOR}, {}),
        FetchedOffsets({}, loading, {}),
        e.Disconnected("node 1"),
        FetchedOffsets({PART: Committed(7)}, {}, {}),
    ])  # fmt: skip

    async def fetch(*_args: Any) -> FetchedOffsets:
        answer = answers.popleft()
        if isinstance(answer, KeylaneError):
            raise answer
        return answer

    monkeypatch.setattr(calls, "fetch_committed", fetch)

    assert await inquiry(cluster)._committed() == {0: 7}
    assert cluster.lost_coordinators == 3


async def test_offsets_behind_a_transaction_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition is left out, and no other question is asked."""

    async def fetch(*_args: Any) -> FetchedOffsets:
        return FetchedOffsets({}, {PART: e.UNSTABLE_OFFSET_COMMIT}, {})

    monkeypatch.setattr(calls, "fetch_committed", fetch)

    assert await inquiry(filled(FakeCluster()))._committed() == {}


@pytest.mark.parametrize("error", [e.Disconnected("node 1"), e.CoordinatorUnavailable("group g")])
async def test_a_coordinator_that_stays_away_ends_the_advice(error: KeylaneError) -> None:
    """With the last reason; what is refused is not asked again."""
    cluster = filled(FakeCluster())

    async def fail(_group: str) -> None:
        raise error

    async def refuse(_group: str) -> None:
        raise GroupDenied("group billing")

    with pytest.raises(type(error)):
        await inquiry(cluster)._ask_coordinator("billing", fail)
    asked = cluster.lost_coordinators
    with pytest.raises(GroupDenied):
        await inquiry(cluster)._ask_coordinator("billing", refuse)

    assert asked > 0
    assert cluster.lost_coordinators == asked


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (e.NONE, AdviceFailed, "deleted and made anew meanwhile; ask again"),
        (e.UNKNOWN_TOPIC_OR_PARTITION, e.TopicUnknown, "topic orders"),
    ],
)
async def test_a_topic_of_another_id_is_not_described(
    code: int, kind: type[KeylaneError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets of the one before would be taken for those of the new one."""
    cluster = filled(FakeCluster())
    described = SimpleNamespace(error_code=code, topic_id=uuid.UUID(int=2), partitions=())

    async def ask(*_args: Any) -> Any:
        return SimpleNamespace(topics=(described,))

    monkeypatch.setattr(cluster, "ask_entity", ask)

    with pytest.raises(kind, match=words):
        await inquiry(cluster)._describe_topic(None, None, None, 0)
