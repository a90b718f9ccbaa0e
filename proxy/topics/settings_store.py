"""Assignments and switches in Kafka: loaded at start, followed afterwards, changed by any node.

Source: docs/decisions/019; KIP-98 (idempotent producer, fencing).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, ProducerFenced

from keylane.config.own_names import SETTINGS_ID
from keylane.errors import SettingsInvalid, SettingsUnsaved, UpstreamLost
from keylane.journal.journal_topic import COMPACT, ensure_topic
from keylane.journal.own_topic import (
    CLOSE_TIMEOUT_S,
    OwnTopicClients,
    close_consumer,
    close_producer,
    describe_error,
    end_within,
)
from keylane.offsets.values import Damaged
from keylane.proxy.topics.range_table import Assignment, RangeTable, RangeTableHolder
from keylane.proxy.topics.settings_records import (
    CHANGE_BYTES_MAX,
    PARTITION,
    TOPIC_NAME,
    Record,
    SettingsState,
    batch_bytes,
    write_assignments,
    write_fence,
    write_switches,
)
from keylane.proxy.topics.switches import SwitchBoard, Switches
from keylane.tasks import spawn

log = logging.getLogger("keylane.settings")

TRANSACTIONAL_ID: Final = SETTINGS_ID
"""Transactional id of all nodes of a cluster: a writer fences the writers before it."""
WRITE_TIMEOUT_S: Final = 20.0
LOAD_TIMEOUT_S: Final = 60.0
ATTEMPTS: Final = 10
FENCED_PAUSE_S: Final = 0.2
"""Pause after a fenced attempt: nodes that write at once fence each other until a pause is long.

It doubles: on a busy machine a write takes many times what it takes on an idle one.
"""
PAUSE_S_MAX: Final = 5.0
POLL_MS: Final = 200
"""Delay in noticing the end of an older keylane's transaction, at most; records come at once."""
RETRY_BACKOFF_S: Final = 1.0
SEGMENT_BYTES: Final = 10 * 1024**2
PLACE: Final = TopicPartition(TOPIC_NAME, PARTITION)


class SettingsStore:
    """The settings topic of a cluster, for one node that reads and writes it.

    A node that changes something asks for the next producer epoch of an id that all nodes share,
    and writes a fence with it: behind that record no older epoch can write. So the state that is
    read up to the fence is the newest version. The change is made of it, and is one batch, which
    the broker accepts only if no later fence has been written.
    Invariant: the holders never go back to an older version.
    """

    def __init__(
        self,
        clients: OwnTopicClients,
        *,
        assignments: RangeTableHolder,
        switches: SwitchBoard,
        next_epoch: Callable[[str], Awaitable[tuple[int, int]]],
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        """next_epoch: gives the producer id of a transactional id, and its next epoch.

        It may raise UpstreamLost.
        """
        self._clients, self._next_epoch = clients, next_epoch
        self.assignments, self.switches = assignments, switches
        self._write_timeout_s = write_timeout_s
        self._state = SettingsState()
        self._consumer: AIOKafkaConsumer | None = None
        self._follower: asyncio.Task[None] | None = None
        self._writing, self._applying = asyncio.Lock(), asyncio.Lock()
        self._moved = asyncio.Condition()
        self._position = 0

    async def start(self) -> None:
        """Make the topic if it is missing, read it to its end, and follow it from then on.

        Raises: UpstreamLost.
        """
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                config = {"cleanup.policy": COMPACT, "segment.bytes": str(SEGMENT_BYTES)}
                await self._clients.administer(
                    lambda admin: ensure_topic(admin, TOPIC_NAME, config, 1)
                )
                consumer = self._consumer = self._clients.make_consumer(
                    isolation_level="read_committed"
                )
                await consumer.start()
                # Before it fetches: a broker answers a connection in order, and holds an empty
                # fetch for half a second.
                # The last stable offset: behind it nothing is whole.
                end = (await consumer.end_offsets([PLACE]))[PLACE]
                consumer.assign([PLACE])
                await consumer.seek_to_beginning(PLACE)
                while self._position < end:
                    await self._read_on()
        except (KafkaError, TimeoutError) as error:
            raise UpstreamLost(f"cannot load {TOPIC_NAME}: {describe_error(error)}") from None
        log.info(
            "settings loaded assignments_version=%d clients=%d switches_version=%d",
            self._state.table.version, len(self._state.table.clients), self._state.switches.version,
        )  # fmt: skip
        self._follower = self._clients.watched.run(self._follow, "settings")

    async def stop(self) -> None:
        """End a change that is under way, and close."""
        async with self._writing:
            if self._follower is not None:
                self._follower.cancel()
            if self._consumer is not None:
                await end_within(close_consumer(self._consumer))

    async def change_assignments(
        self, decide: Callable[[RangeTable], Mapping[str, Assignment | None]]
    ) -> RangeTable:
        """Apply the changes that `decide` makes of the newest table; return the new table.

        An empty change leaves the version. On an error of `decide` nothing is written.

        Raises: SettingsUnsaved; AssignmentInvalid, RangesOverlap (see `write_assignments`,
        `RangeTable.with_clients`).
        """

        def make(state: SettingsState) -> list[Record]:
            changes = decide(state.table)
            if not changes:
                return []
            return write_assignments(state.table.with_clients(changes), changes)

        await self._change(make)
        return self.assignments.table

    async def change_switches(self, decide: Callable[[Switches], Switches]) -> Switches:
        """Replace the switches by the result of `decide`, which sets the version.

        Raises: SettingsUnsaved; what `decide` raises.
        """

        def make(state: SettingsState) -> list[Record]:
            wanted = decide(state.switches)
            return [] if wanted == state.switches else write_switches(wanted)

        await self._change(make)
        return self.switches.current

    # Writing.
    async def _change(self, make: Callable[[SettingsState], list[Record]]) -> None:
        async with self._writing:
            for attempt in range(ATTEMPTS):
                if await self._write(make):
                    return
                longest_s = min(FENCED_PAUSE_S * 2**attempt, PAUSE_S_MAX)
                await asyncio.sleep(random.uniform(0, longest_s))
        raise SettingsUnsaved("other nodes change the settings: try again", is_unknown=False)

    async def _write(self, make: Callable[[SettingsState], list[Record]]) -> bool:
        """Make one attempt; return False when another node was faster."""
        records, producer = list[Record](), None
        try:
            async with asyncio.timeout(self._write_timeout_s):
                epoch = await self._next_epoch(TRANSACTIONAL_ID)
                producer = await self._clients.open_producer(
                    close_producer, batch_bytes=CHANGE_BYTES_MAX, epoch=epoch
                )
                await self._read_to(await _write_batch(producer, write_fence()) + 1)
                async with self._applying:
                    records = await asyncio.to_thread(make, self._state)
                if records:
                    await _write_batch(producer, records)
                    async with self._applying:
                        await asyncio.to_thread(self._state.apply_own, records)
                        self._show()
        except ProducerFenced:
            return False
        except MessageSizeTooLargeError:
            size = f"a change of {batch_bytes(records)} bytes"
            reason = f"writing {TOPIC_NAME}: {size} is above its max.message.bytes"
            raise SettingsUnsaved(reason, is_unknown=False) from None
        except (KafkaError, TimeoutError, UpstreamLost) as error:
            reason = f"writing {TOPIC_NAME}: {describe_error(error)}"
            raise SettingsUnsaved(reason, is_unknown=bool(records)) from None
        finally:
            if producer is not None:
                # Without a broker that answers it takes longer: no caller needs to wait.
                closing = spawn(close_producer(producer), "close settings producer")
                await asyncio.wait([closing], timeout=CLOSE_TIMEOUT_S)
        return True

    async def _read_to(self, end: int) -> None:
        """Wait until the follower has read all before an offset."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._position >= end)

    # Reading.
    async def _follow(self) -> None:
        """Take in the records of all nodes, until stopped."""
        while True:
            try:
                if await self._read_on():
                    log.info(
                        "settings changed assignments_version=%d switches_version=%d",
                        self._state.table.version, self._state.switches.version,
                    )  # fmt: skip
            except KafkaError as error:
                log.warning("settings read failed: retrying error=%s", describe_error(error))
                await asyncio.sleep(RETRY_BACKOFF_S)

    async def _read_on(self) -> bool:
        """Take in the next records; return whether they changed anything."""
        consumer = self._consumer
        assert consumer is not None, "start comes first"
        batches = await consumer.getmany(PLACE, timeout_ms=POLL_MS)
        position = await consumer.position(PLACE)
        records = batches.get(PLACE, [])
        changed = False
        if records:
            async with self._applying:
                changed, damaged = await asyncio.to_thread(_apply_all, self._state, records)
                for each in damaged:
                    self._clients.set_aside.note(TOPIC_NAME, each)
                self._show()
        async with self._moved:
            self._position = position
            self._moved.notify_all()
        return changed

    def _show(self) -> None:
        self.assignments.table = self._state.table
        self.switches.current = self._state.switches


async def _write_batch(producer: AIOKafkaProducer, records: Sequence[Record]) -> int:
    """Write all of them or none; return the offset of the first. Raises: KafkaError."""
    batch = producer.create_batch()
    for key, value in records:
        added = batch.append(timestamp=None, key=key, value=value)
        assert added is not None, "`settings_records` sees to the size"
    batch.close()
    acknowledged = await producer.send_batch(batch, TOPIC_NAME, partition=PARTITION)
    return int((await acknowledged).offset)


def _apply_all(
    state: SettingsState, records: Sequence[ConsumerRecord[Any, Any]]
) -> tuple[bool, list[Damaged]]:
    """Return whether anything has changed, and the records that could not be accepted."""
    changed, damaged = False, []
    for record in records:
        try:
            changed |= state.apply(record.key, record.value, record.offset)
        except SettingsInvalid as error:
            damaged.append(Damaged(PARTITION, record.offset, str(error)))
        except Exception as error:  # noqa: BLE001 - one record must not block the others
            reason = f"a mistake of keylane in reading it, {type(error).__name__}"
            damaged.append(Damaged(PARTITION, record.offset, reason))
        damaged += state.take_left_out()
    return changed, damaged
