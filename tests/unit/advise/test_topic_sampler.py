"""The sampler at brokers in memory: bounds, a broker that is away, a log that changes."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from keylane.advise import fetching
from keylane.advise.errors import AdviceFailed
from keylane.advise.fetching import Bounds, TopicSampler
from keylane.advise.sample import SampledPartition
from keylane.client import errors as e
from keylane.client.settings import ConsumerSettings
from keylane.client.values import TopicPartition
from tests.reference.batches import Batch, Record, write_batch
from tests.reference.client_node import FakeCluster

TOPIC: Final = "orders"
PART: Final = TopicPartition(TOPIC, 0)
SETTINGS: Final = ConsumerSettings(isolation_level="read_committed", retry_backoff_ms=1)
BOUNDS: Final = Bounds(records_max=10_000, bytes_max=1 << 30, seconds_max=60)


@dataclass
class Brokers(FakeCluster):
    """A broker that may lose connections, and whose topic may be made anew."""

    losses: deque[e.Disconnected] = field(default_factory=deque)
    """Instead of the next answers."""
    next_id: uuid.UUID | None = None
    """Id of the topic after the next refresh."""
    known_id: uuid.UUID = field(default_factory=lambda: uuid.UUID(int=1))
    timeouts_s: list[float] = field(default_factory=list)

    def topic_id(self, topic: str) -> uuid.UUID | None:
        return self.known_id

    async def refresh(self) -> None:
        await super().refresh()
        self.known_id = self.next_id or self.known_id

    async def ask(
        self, node_id: int, api_key: int, version: int, body: bytes, **options: Any
    ) -> memoryview:
        self.timeouts_s.append(options["timeout_s"])
        if self.losses:
            raise self.losses.popleft()
        return await super().ask(node_id, api_key, version, body, **options)

    def limits(self) -> list[int]:
        """Bytes asked of each partition, by request."""
        return [each.topics[0].partitions[0].partition_max_bytes for each in self.fetches]


def brokers(*, partitions: int = 1, count: int = 1_000, **options: Any) -> Brokers:
    """A topic with as many records in each partition, ten in a batch."""
    cluster = Brokers(**options)
    for number in range(partitions):
        part = TopicPartition(TOPIC, number)
        for base in range(0, count, 10):
            records = tuple(Record(n, b"key-%d" % (base + n), b"value") for n in range(10))
            cluster.append(part, Batch(base, records))
    return cluster


async def read(
    cluster: Brokers, *, end: int = 1_000, partitions: int = 1, bounds: Bounds = BOUNDS
) -> list[SampledPartition]:
    """Read a sample of all partitions up to an offset."""
    sampler = TopicSampler(cluster, SETTINGS, TOPIC, bounds)  # type: ignore[arg-type]
    return await sampler.read(dict.fromkeys(range(partitions), (0, end)), lambda _text: None)


async def test_all_records_are_read_once() -> None:
    """Whole, although each answer has more than its span."""
    (found,) = await read(brokers())

    assert found.record_count == 1_000
    assert found.density == 1


async def test_a_broker_that_comes_back_is_asked_again() -> None:
    """A connection that ends is no end of the sample: the next answer may be of another leader."""
    cluster = brokers(losses=deque([e.Disconnected("node 1"), e.RequestTimedOut("node 1")]))

    (found,) = await read(cluster)

    assert found.record_count == 1_000
    assert cluster.refreshes == 2


async def test_a_broker_that_stays_away_ends_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time of an election, with the reason."""
    monkeypatch.setattr(fetching, "ELECTION_S", 0.05)
    lost = deque(e.Disconnected("node 1: refused") for _ in range(10_000))

    with pytest.raises(e.Disconnected, match="node 1: refused"):
        await read(brokers(losses=lost))


async def test_a_broker_that_hangs_does_not_outlast_the_sample() -> None:
    """Each request has what is left of the time, and a second at least."""
    cluster = brokers()

    await read(cluster, bounds=Bounds(records_max=10_000, bytes_max=1 << 30, seconds_max=3))

    assert cluster.timeouts_s
    assert all(1 <= each <= 3 for each in cluster.timeouts_s)


async def test_a_topic_that_is_made_anew_ends_the_sample() -> None:
    """Its records would be mixed with those of the one before."""
    cluster = brokers(next_id=uuid.UUID(int=2))
    cluster.fetch_codes.append((e.UNKNOWN_TOPIC_ID, 0))

    with pytest.raises(AdviceFailed, match="deleted and made anew meanwhile; ask again"):
        await read(cluster)


async def test_what_is_deleted_meanwhile_is_left_out() -> None:
    """The log begins at 500 now: spans before are no longer there, the others are read."""
    cluster = brokers()
    cluster.starts[PART] = 500

    (found,) = await read(cluster)

    assert 400 < found.record_count <= 500
    assert min(piece.start for piece in found.pieces) >= 500
    assert found.density == 1


async def test_bytes_that_brokers_send_are_bounded() -> None:
    """Also those of records beyond the span: the first answer has the whole log."""
    size = len(write_batch(Batch(0, (Record(0, b"key-0", b"value"),))))

    (found,) = await read(
        brokers(), bounds=Bounds(records_max=10_000, bytes_max=size, seconds_max=60)
    )

    assert len(found.pieces) == 1


async def test_requests_ask_for_no_more_than_their_spans() -> None:
    """Few records: 128 KiB; many partitions: all of them fit in one answer."""
    few, many = brokers(), brokers(partitions=40, count=200)

    await read(few)
    bounds = Bounds(records_max=10**7, bytes_max=1, seconds_max=60)
    await read(many, end=10**7, partitions=40, bounds=bounds)

    assert set(few.limits()) == {fetching.PARTITION_BYTES_MIN}
    assert many.limits()[0] * 32 == fetching.ANSWER_BYTES


async def test_a_batch_that_does_not_fit_is_asked_for_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty answer, then a request for this partition only; later ones ask for more."""
    cluster = brokers(partitions=2)
    whole = cluster._answer

    def first_is_empty(topic: str, asked: Any) -> Any:
        found = whole(topic, asked)
        is_small = asked.partition == 0 and len(cluster.fetches) == 1
        return found._replace(records=()) if is_small else found

    monkeypatch.setattr(cluster, "_answer", first_is_empty)

    found = await read(cluster, partitions=2)

    assert [each.record_count for each in found] == [1_000, 1_000]
    asked = [[p.partition for p in each.topics[0].partitions] for each in cluster.fetches]
    assert asked[:2] == [[0, 1], [0]]
    assert cluster.limits()[2] == 2 * fetching.PARTITION_BYTES_MIN


async def test_a_partition_without_a_leader_is_waited_for() -> None:
    """It is read once a broker leads it."""
    cluster = Brokers()

    async def elect() -> None:
        await asyncio.sleep(0.01)
        cluster.logs.update(brokers().logs)

    (found,), _ = await asyncio.gather(read(cluster), elect())

    assert found.record_count == 1_000
    assert cluster.refreshes > 1


async def test_a_deleted_topic_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker leads it, and none will: the error is of the topic and not of a broker."""
    monkeypatch.setattr(fetching, "ELECTION_S", 0.05)

    with pytest.raises(e.TopicUnknown, match="topic orders: no broker knows it any more"):
        await read(Brokers())


async def test_an_answer_without_records_ends_an_absence() -> None:
    """All is deleted meanwhile: yet two short absences are not taken for a long one."""
    cluster = brokers(losses=deque([e.Disconnected("node 1")]))
    cluster.starts[PART] = 1_000
    sampler = TopicSampler(cluster, SETTINGS, TOPIC, BOUNDS)  # type: ignore[arg-type]

    (found,) = await sampler.read({0: (0, 1_000)}, lambda _text: None)

    assert found.record_count == 0
    assert sampler._away_since_s == {}
