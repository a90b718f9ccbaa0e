"""Kafka and the journal under nodes that die, and a naive twin of what a group may be answered.

What is real here: handlers, `GroupOffsets`, states, table, journal records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
from kio.index import load_response_schema

from keylane.config.node import LaneRule
from keylane.errors import UpstreamLost
from keylane.journal.own_topic import OwnTopicClients
from keylane.keyrange.key_split import KeySplit, PartitionSplit
from keylane.offsets.lineage import NO_EPOCH, EpochEnd
from keylane.offsets.records.journal import JournalRecord
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import OwnerEpoch
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.commits.log_ends import Question
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.wire.header import read_request_header
from keylane.wire.messages import read_request, write_message
from tests.reference.response_frame import write_response
from tests.transcript.entities import Values, build, plain
from tests.transcript.fake import ORDERS, FakeContext

COMMIT, FETCH, TXN_COMMIT, DELETE = 8, 9, 28, 47
FENCED, TIMED_OUT = 22, 15


class Died(BaseException):
    """The process ends here: nothing behind this point is done."""


@dataclass(frozen=True)
class Fault:
    """What becomes of one request to the broker, or one append, of an operation."""

    number: int
    """Which one, counted from 0; reads are not counted."""
    is_done: bool
    """Whether it takes effect at once."""
    is_late: bool
    """Otherwise: whether it takes effect later. An append is written in part."""
    dies: bool
    """Whether the process ends; else the answer is lost, or an error."""


Late = tuple[int | None, str]
"""A push that was sent and has not arrived: offset and metadata."""


@dataclass
class Kafka:
    """One partition: its log, Kafka's own offset of a group there; and the journal's log.

    Lane 0 has a record at every offset of the first log, and the other lanes have none. The log
    may be gone, and begin anew; each record of the new one may be of any lane.
    """

    offset: int | None = None
    metadata: str = ""
    log: list[JournalRecord] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    fault: Fault | None = None
    count: int = 0
    is_fenced: bool = False
    in_transaction: tuple[int, str] | None = None
    epoch: int = 0
    """Of the partition's leader; with the first there is the first log."""
    end: int = 0
    owners: int = 0
    """Nodes that have opened the journal, one after the other."""

    def loaded(self) -> OffsetTable:
        """What a node reads from the journal."""
        table = OffsetTable(partition_count=1)
        for number, record in enumerate(self.log):
            table.apply(record.partition, number, record.key, record.value)
        report = table.finish_load()
        assert report.damaged_count == 0, report.damaged
        table.check()
        return table

    def begin(self, fault: Fault | None) -> None:
        """An operation begins."""
        self.fault, self.count = fault, 0

    def fault_now(self) -> Fault | None:
        """The fault of this request or append, if it is the one."""
        number, self.count = self.count, self.count + 1
        return self.fault if self.fault is not None and self.fault.number == number else None

    def arrive(self, offset: int | None, metadata: str = "") -> None:
        """A push comes into effect."""
        self.offset, self.metadata = offset, metadata

    @property
    def is_first_log(self) -> bool:
        """Whether the log has not been lost yet."""
        return self.epoch == 0

    def epoch_end(self, epoch: int) -> EpochEnd:
        """As `LeaderEpochFileCache.endOffsetFor` of a log that has one epoch."""
        if epoch in (NO_EPOCH, self.epoch):
            return EpochEnd(self.epoch, self.end)
        return EpochEnd(epoch, 0)


class Store:
    """Implements what `GroupOffsets` asks of `JournalStore`."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka, self.has_failed, self.cuts = kafka, False, 0

    async def start(self, **_: Any) -> OffsetTable:
        table = self.kafka.loaded()
        self.kafka.owners += 1
        table.owner = OwnerEpoch(1000, self.kafka.owners)
        return table

    async def append(self, records: Sequence[JournalRecord]) -> None:
        if not records:
            return
        fault = self.kafka.fault_now()
        if fault is None:
            self.kafka.log += records
            return
        self.kafka.log += records if fault.is_done else records[: len(records) * fault.is_late // 2]
        if fault.dies:
            raise Died
        self.has_failed = True
        raise UpstreamLost("no ack from the journal")


class Node(FakeContext):
    """A node with the real `GroupOffsets`, in front of the model."""

    def __init__(self, kafka: Kafka, *, lanes: int = 4) -> None:
        super().__init__(LaneRule(topic="orders", lanes=lanes))
        self.kafka, self.store = kafka, Store(kafka)
        cluster: Any = SimpleNamespace(
            on_leader=[],
            registry=self.registry,
        )
        ends = SimpleNamespace(ask=self._ask_ends, offset_at=self._offset_at)
        with (
            mock.patch("keylane.journal.openings.JournalStore", return_value=self.store),
            mock.patch("keylane.proxy.commits.group_offsets.LogEnds", return_value=ends),
        ):
            offsets = GroupOffsets(
                self.config,
                cluster,
                OwnTopicClients(""),
                wall_clock=lambda: 1.0,
                clock=lambda: self.world.now_s,
            )
        self.offsets = offsets
        self.groups = cast("Any", offsets)

    async def start(self) -> Node:
        self.group_names.note_empty("g")  # an offset that is missing was deleted
        await self.offsets.start()
        return self

    def read(self, start: int, end: int, key_split: KeySplit | None = None) -> None:
        """A reader compares the log with what was seen of it, and looks at a part of it."""
        lineage = self.offsets.lineages.of((ORDERS, 0))
        if 0 <= lineage.newest < self.kafka.epoch:
            self.offsets.on_truncated(ORDERS, 0, 0)
        lineage.leader_epoch = self.kafka.epoch
        lineage.note(end, ((self.kafka.epoch, start),))
        self.scan(start, end, self.kafka.epoch, is_own=True, key_split=key_split)

    def scan(
        self, start: int, end: int, epoch: int, *, is_own: bool, key_split: KeySplit | None = None
    ) -> None:
        """Here or at another node a part of the log was looked at."""
        key_split = key_split or self.lanes("orders").key_split(0)
        lasts = np.full(key_split.output_count, -1 if epoch == 0 else end - 1, np.int64)
        lasts[0] = end - 1
        self.offsets.on_scanned(
            ScannedBlock(
                topic="orders", at=PartitionSplit(ORDERS, 0, key_split),
                start=start, end=end, last_record_offsets=lasts,
                outputs=(None,) * key_split.output_count, holes=(),
                log_start_offset=0, leader_epoch=epoch, epochs=((epoch, start),) if is_own else (),
            )
        )  # fmt: skip

    def lose_log(self, *, is_read: bool) -> None:
        """The log is gone, which a reader has seen, or metadata with another leader."""
        if is_read:
            self.offsets.on_truncated(ORDERS, 0, 0)
        self.offsets.note_leader((ORDERS, 0), self.kafka.epoch)

    def answer_frame(self, frame: bytes) -> bytes:
        header = read_request_header(frame, 4)
        body = memoryview(frame)[header.body_position :]
        wanted = plain(read_request(header.api_key, header.api_version, body))
        answer = self._fetched() if header.api_key == FETCH else self._written(header, wanted)
        parts = [write_message(build(load_response_schema(*header_key(header)), answer))]
        return b"".join(write_response(*header_key(header), header.correlation_id, parts))

    def _fetched(self) -> Values:
        offset = self.kafka.offset
        entry = {
            "partition_index": 0,
            "committed_offset": -1 if offset is None else offset,
            "metadata": self.kafka.metadata,
            "error_code": 0,
        }
        return {"topics": [{"name": "orders", "partitions": [entry]}]}

    def _written(self, header: Any, wanted: Values) -> Values:
        """A commit, a deletion, or offsets of a transaction."""
        if not wanted["topics"]:
            return {"error_code": 0, "topics": []}  # of the group alone
        ((entry,),) = [topic["partitions"] for topic in wanted["topics"]]
        offset: int | None = entry.get("committed_offset")
        is_member = wanted.get("member_id", "") != ""
        code = FENCED if self.kafka.is_fenced and is_member else 0
        fault = self.kafka.fault_now()
        if code == 0 and (fault is None or fault.is_done):
            if header.api_key == TXN_COMMIT:
                self.kafka.in_transaction = offset or 0, entry["committed_metadata"]
            else:
                self.kafka.arrive(offset, entry.get("committed_metadata", ""))
        elif code == 0 and fault is not None and fault.is_late and header.api_key != TXN_COMMIT:
            self.kafka.late.append((offset, entry.get("committed_metadata", "")))
            code = TIMED_OUT
        if fault is not None and fault.dies:
            raise Died
        if fault is not None and code == 0:
            raise UpstreamLost("the connection is lost")
        entry = {"partition_index": 0, "error_code": code}
        return {"error_code": 0, "topics": [{"name": "orders", "partitions": [entry]}]}

    async def _ask_ends(self, questions: Iterable[Question]) -> dict[Question, EpochEnd]:
        return {question: self.kafka.epoch_end(question.epoch) for question in questions}

    async def _offset_at(self, *_: Any) -> int:
        return 0


def header_key(header: Any) -> tuple[int, int]:
    """API key and version."""
    return int(header.api_key), int(header.api_version)


@dataclass
class Bounds:
    """What OffsetFetch may answer for a lane; no offset counts as 0, the log start."""

    low: int = 0
    """Nothing below it was asked for since it was acknowledged."""
    high: int = 0
    """Nothing above it was said to be processed, or asked for."""
    led: int = 0
    """Up to here the log has no record of the lane."""

    def set(self, offset: int) -> None:
        """Acknowledged: exactly this."""
        self.low = self.high = offset

    def may_be(self, offset: int) -> None:
        """Asked for, and what came of it is not known."""
        self.low, self.high = min(self.low, offset), max(self.high, offset)

    def at_least(self, offset: int) -> None:
        """Everything before it was committed for all lanes."""
        self.low, self.high = max(self.low, offset), max(self.high, offset)
