"""Kafka and the journal under nodes that die, and a naive twin of what a group may be answered.

In:    requests of real handlers, faults.  Out: answers, lost answers, deaths; bounds per lane.
Pure:  no I/O. What is real here: handlers, `GroupOffsets`, states, table, journal records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from keylane.errors import UpstreamLost
from keylane.offsets.journal import JournalRecord
from keylane.offsets.table import OffsetTable
from keylane.proxy.groups import GroupOffsets
from keylane.proxy.topics import View
from keylane.wire.header import read_request_header, write_response
from keylane.wire.messages import read_request, write_message
from tests.transcript.entities import Values, build, plain
from tests.transcript.fake import FakeContext

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


@dataclass
class Kafka:
    """Kafka's own offset of one partition of a group, and the journal's log."""

    offset: int | None = None
    metadata: str = ""
    log: list[JournalRecord] = field(default_factory=list)
    late: list[int | None] = field(default_factory=list)
    """Offsets of pushes that were sent and have not arrived."""
    fault: Fault | None = None
    count: int = 0
    is_fenced: bool = False
    in_transaction: tuple[int, str] | None = None

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

    def arrive(self, offset: int | None) -> None:
        """A push comes into effect."""
        self.offset, self.metadata = offset, ""


class Store:
    """Implements what `GroupOffsets` asks of `JournalStore`."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka, self.has_failed = kafka, False

    async def start(self, **_: Any) -> OffsetTable:
        return self.kafka.loaded()

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

    def __init__(self, kafka: Kafka) -> None:
        super().__init__()
        self.kafka, self.store = kafka, Store(kafka)
        cluster: Any = SimpleNamespace(
            security=SimpleNamespace(aiokafka_options=dict),
            registry=self.registry,
            leader_of=self._leader_of,
            ask_broker=self._ask_broker,
        )
        with mock.patch("keylane.proxy.groups.JournalStore", return_value=self.store):
            offsets = GroupOffsets(
                self.config, cluster, wall_clock=lambda: 1.0, clock=lambda: self.world.now_s
            )
        self.offsets = offsets
        self.groups = cast("Any", offsets)

    async def start(self) -> Node:
        self.group_names.note_empty("g")  # an offset that is missing was deleted
        await self.offsets.start()
        return self

    async def log_start(self, view: View, partition: int) -> int:
        return await self.offsets.log_start(view, partition)

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
                self.kafka.arrive(offset)
        elif code == 0 and fault is not None and fault.is_late and header.api_key != TXN_COMMIT:
            self.kafka.late.append(offset)
            code = TIMED_OUT
        if fault is not None and fault.dies:
            raise Died
        if fault is not None and code == 0:
            raise UpstreamLost("the connection is lost")
        entry = {"partition_index": 0, "error_code": code}
        return {"error_code": 0, "topics": [{"name": "orders", "partitions": [entry]}]}

    async def _leader_of(self, *_: Any) -> tuple[int, int]:
        return 1, 0

    async def _ask_broker(self, *_: Any) -> Any:
        found = SimpleNamespace(error_code=ErrorCode.none, offset=0)
        return SimpleNamespace(topics=[SimpleNamespace(partitions=[found])])


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

    def set(self, offset: int) -> None:
        """Acknowledged: exactly this."""
        self.low = self.high = offset

    def may_be(self, offset: int) -> None:
        """Asked for, and what came of it is not known."""
        self.low, self.high = min(self.low, offset), max(self.high, offset)

    def at_least(self, offset: int) -> None:
        """Everything before it was committed for all lanes."""
        self.low, self.high = max(self.low, offset), max(self.high, offset)
