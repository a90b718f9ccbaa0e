"""Records of a share group as a source of the workers: each outcome is an acknowledgement.

Source: KIP-932, explicit acknowledgement; confluent-kafka's `ShareConsumer` (2.16). Over keylane's
ordered share groups a key is at one member at a time; over a broker's own there is no order.

The client polls no further records before all of the last poll have an outcome, so one slow record
leaves workers idle: take a `max.poll.records` of one or two for each worker. Locks are not renewed
(KIP-1222 has no part in librdkafka yet): attempts and back-offs of a record have to fit in the
group's `share.record.lock.duration.ms`, else it comes again, and the late outcome is refused.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

from keylane.client.raw_headers import write_headers
from keylane.client.values import NO_TIMESTAMP, ConsumerRecord, TopicPartition
from keylane.client.workers.source import PlainSettings
from keylane.errors import ConfigInvalid
from keylane.tasks import spawn

log = logging.getLogger("keylane.workers")

MAX_POLL_INTERVAL_MS: Final = 300_000
"""librdkafka's default."""
MODE: Final = "share.acknowledgement.mode"

Outcome = Literal["ACCEPT", "RELEASE", "REJECT"]


class _Ended(NamedTuple):
    topic: str
    partition: int
    offset: int
    outcome: Outcome


class ShareSource:
    """A share group's records for `Workers`: accepted when done, else rejected or released.

    ```
    async with ShareSource(config, ["orders"]) as source, Workers(source, handle) as workers:
        await workers.run()
    ```

    Retries are made here, within the lock; then the record is rejected, or released for another
    delivery (`when_over`). With `DeadLetters` it is accepted once its letter is written.

    Raises: ConfigInvalid, where the configuration or the installed client cannot do this.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        *,
        when_over: Literal["reject", "release"] = "reject",
        library: Any = None,
    ) -> None:
        """config: confluent-kafka's. library: what stands for `confluent_kafka`, in tests."""
        if config.get(MODE, "explicit") != "explicit":
            raise ConfigInvalid(f"{MODE}: the workers need explicit")
        if when_over not in {"reject", "release"}:
            raise ConfigInvalid(f"when_over: {when_over!r} is neither reject nor release")
        self._library = library or _load_library()
        self._config = {**config, MODE: "explicit"}
        self._topics = list(topics)
        interval_ms = int(config.get("max.poll.interval.ms", MAX_POLL_INTERVAL_MS))
        self.settings: PlainSettings = PlainSettings(config.get("group.id"), interval_ms)
        self._over: Outcome = "REJECT" if when_over == "reject" else "RELEASE"
        self._thread = ThreadPoolExecutor(1, "keylane-share")  # the client is for one thread
        self._open: set[tuple[str, int, int]] = set()
        self._ended: list[_Ended] = []
        self._none_open = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self.refused_count: int = 0
        """Outcomes that came after their lock had ended, or could not be written."""

    async def __aenter__(self) -> Self:
        self._consumer = self._library.ShareConsumer(self._config)
        self._consumer.subscribe(self._topics)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send the outcomes; what has none is released."""
        try:
            await self.commit()
        finally:
            await self._in_thread(self._consumer.close)
            self._thread.shutdown(wait=False)

    async def getmany(
        self,
        *_partitions: TopicPartition,
        timeout_ms: int = 0,
        max_records: int | None = None,  # noqa: ARG002 - max.poll.records bounds it
        max_partition_records: int | None = None,  # noqa: ARG002 - the broker mixes them
    ) -> list[ConsumerRecord]:
        """Return the records of a poll; none while some of the last one are not finished."""
        if self._open:
            self._none_open.clear()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._none_open.wait()
            except TimeoutError:
                return []
        await self.commit()
        records: list[ConsumerRecord] = await self._in_thread(self._poll, timeout_ms / 1000)
        self._open.update(map(_place_of, records))
        return records

    def mark_done(self, *records: ConsumerRecord) -> None:
        """Accept records, at once."""
        self._end(records, "ACCEPT")

    def reject(self, record: ConsumerRecord) -> None:
        """End a record whose attempts are over, as `when_over` says."""
        self._end([record], self._over)

    def release(self, *records: ConsumerRecord) -> None:
        """Give records back; they come again, at any member."""
        self._end(records, "RELEASE")

    async def commit(self) -> None:
        """Wait until the outcomes are written. Raises what the client raised since the last one."""
        while self._sending is not None:
            await asyncio.shield(self._sending)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def assignment(self) -> frozenset[TopicPartition]:
        """Return none: a share group's members have any partition."""
        return frozenset()

    def paused(self) -> frozenset[TopicPartition]:
        """Return none: polls stop by themselves while records are open."""
        return frozenset()

    def pause(self, *_partitions: TopicPartition) -> None:
        """Nothing."""

    def resume(self, *_partitions: TopicPartition) -> None:
        """Nothing."""

    def to_be_revoked(self) -> frozenset[TopicPartition]:
        """Return none: locks belong to records."""
        return frozenset()

    def lost(self) -> frozenset[TopicPartition]:
        """Return none."""
        return frozenset()

    def delay_revoke(self, _partitions: Collection[TopicPartition], /) -> bool:
        """Nothing is revoked."""
        return True

    def _end(self, records: Iterable[ConsumerRecord], outcome: Outcome) -> None:
        for record in records:
            place = _place_of(record)
            if place in self._open:
                self._open.remove(place)
                self._ended.append(_Ended(*place, outcome))
        if not self._open:
            self._none_open.set()
        if self._ended and self._sending is None:
            self._sending = spawn(self._send_all(), "keylane-share-outcomes")

    async def _send_all(self) -> None:
        """Send outcomes until there are none; those of one time go together."""
        try:
            while self._ended:
                ended, self._ended = self._ended, []
                await self._in_thread(self._send, ended)
        except Exception as error:  # noqa: BLE001 - `commit` raises it
            self._error = error
        finally:
            self._sending = None

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    def _send(self, ended: list[_Ended]) -> None:
        # Ascending, and with commit_sync: commit_async of librdkafka 2.16 may send offsets in
        # descending order, which brokers refuse.
        types = self._library.AcknowledgeType
        for topic, partition, offset, outcome in sorted(ended):
            try:
                self._consumer.acknowledge_offset(topic, partition, offset, getattr(types, outcome))
            except self._library.IllegalStateException:
                self._refused(topic, partition, f"offset {offset} is not acquired any more")
        for place, error in self._consumer.commit_sync().items():
            if error:
                self._refused(place.topic, place.partition, str(error))

    def _refused(self, topic: str, partition: int, reason: str) -> None:
        self.refused_count += 1
        log.warning("outcome refused topic=%s partition=%s: %s", topic, partition, reason)

    def _poll(self, timeout_s: float) -> list[ConsumerRecord]:
        records = []
        for message in self._consumer.poll(timeout_s):
            if message.error():
                log.warning(
                    "message with an error topic=%s partition=%s offset=%s error=%s",
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.error(),
                )
                self._consumer.acknowledge(message, self._library.AcknowledgeType.RELEASE)
            else:
                records.append(_record_of(message, self._library.TIMESTAMP_NOT_AVAILABLE))
        return records


def _load_library() -> Any:
    try:
        library = importlib.import_module("confluent_kafka")
    except ImportError:
        raise ConfigInvalid("a share group needs the package confluent-kafka 2.16") from None
    if not hasattr(library, "ShareConsumer"):
        raise ConfigInvalid("a share group needs confluent-kafka 2.16, with ShareConsumer")
    return library


def _place_of(record: ConsumerRecord) -> tuple[str, int, int]:
    return record[:3]


def _record_of(message: Any, no_timestamp: int) -> ConsumerRecord:
    kind, timestamp_ms = message.timestamp()
    headers = message.headers()
    return ConsumerRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        NO_TIMESTAMP if kind == no_timestamp else timestamp_ms,
        message.key(),
        message.value(),
        write_headers(headers) if headers else b"",
    )
