"""The record kernel, slow and obvious: what `keylane.kernel.split` must agree with.

The twin shares no code with keylane: its own varints, xxhash, the reference CRC library. Only the
assertions at the end call the kernel.
Source: Kafka documentation, "Record Batch" and "Record".
"""

from __future__ import annotations

import gzip
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cramjam
import google_crc32c
import lz4.frame
import xxhash
import zstandard

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.kernel.split import split_block as kernel_split_block
from keylane.kernel.status import META_PRODUCER_ID
from keylane.keyrange.key_split import KeySplit
from tests.reference.batches import write_varint

HEADER = struct.Struct(">qiibIhiqqqhii")


class Bad(Exception):
    """A batch that must be refused."""

    def __init__(self, reason: str, *, unsupported: bool = False) -> None:
        super().__init__(reason)
        self.unsupported = unsupported


@dataclass
class Slice:
    """One lane's part, as lists."""

    data: bytes = b""
    base_offsets: list[int] = field(default_factory=list)
    last_offsets: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    record_counts: list[int] = field(default_factory=list)
    last_record_offsets: list[int] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)

    def add(self, batch: bytes, records: int = 0, last_record: int = -1) -> None:
        """Append one batch."""
        header = HEADER.unpack_from(batch)
        self.data += batch
        self.base_offsets.append(header[0])
        self.last_offsets.append(header[0] + header[6])
        self.ends.append(len(self.data))
        self.record_counts.append(records)
        self.last_record_offsets.append(last_record)
        self.producer_ids.append(header[9])


@dataclass
class Block:
    """The whole answer."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    epochs: tuple[tuple[int, int], ...]
    outputs: list[Slice | None]
    abort_markers: list[tuple[int, int]]
    holes: list[tuple[int, int]]
    record_count: int
    plain_bytes: int
    wire_bytes: int
    bad_position: int | None
    unsupported: bool
    is_full: bool
    """Whether it ended because the next batch did not fit."""


@dataclass
class _Record:
    offset: int
    key: bytes | None
    data: bytes


@dataclass
class _Batch:
    header: bytes
    wire: bytes
    fields: tuple[int, ...]
    records: list[_Record]
    plain_bytes: int

    base = property(lambda self: self.fields[0])
    last = property(lambda self: self.fields[0] + self.fields[6])
    is_control = property(lambda self: bool(self.fields[5] & 0x20))


@dataclass
class Run:
    """Whole batches from the start of a buffer; the last three as in `Block`."""

    batches: list[_Batch]
    plain_bytes: int
    wire_bytes: int
    bad_position: int | None
    unsupported: bool
    is_full: bool


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise Bad("ends early")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self, bytes_max: int = 5) -> int:
        raw = 0
        for index in range(bytes_max):
            byte = self.take(1)[0]
            raw += (byte % 128) << (7 * index)
            if byte < 128:
                if bytes_max == 5 and raw > 0xFFFFFFFF:
                    raise Bad("varint out of range")
                return raw // 2 if raw % 2 == 0 else -(raw // 2) - 1
        raise Bad("varint too long")

    def nullable(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def split_block(
    buffer: bytes,
    limits: Sequence[int],
    owners: Sequence[int] | None = None,
    *,
    plain_bytes_max: int,
    batch_bytes_max: int,
) -> Block | None:
    """Split as `keylane.kernel.split.split_block` must; Bad when the first batch is bad."""
    run = read_run(buffer, plain_bytes_max=plain_bytes_max, batch_bytes_max=batch_bytes_max)
    if run is None:
        return None
    batches = run.batches
    data_records = [r for b in batches if not b.is_control for r in b.records]
    owners = range(len(limits)) if owners is None else owners
    joined = _join_all(batches)
    return Block(
        base_offset=batches[0].base,
        next_offset=batches[-1].last + 1,
        leader_epoch=batches[-1].fields[2],
        epochs=tuple(
            (batch.fields[2], batch.base)
            for before, batch in zip([None, *batches], batches, strict=False)
            if before is None or before.fields[2] != batch.fields[2]
        ),
        outputs=[_slice_lane(joined, lane, limits, owners) for lane in range(max(owners) + 1)],
        abort_markers=list(_abort_markers(batches)),
        holes=list(_holes(batches)),
        record_count=len(data_records),
        plain_bytes=run.plain_bytes,
        wire_bytes=run.wire_bytes,
        bad_position=run.bad_position,
        unsupported=run.unsupported,
        is_full=run.is_full,
    )


def read_run(buffer: bytes, *, plain_bytes_max: int, batch_bytes_max: int) -> Run | None:
    """Read the whole batches at the start; Bad when the first one is."""
    batches: list[_Batch] = []
    position = plain_bytes = 0
    bad_position, unsupported, is_full = None, False, False
    while True:
        try:
            batch = _read_batch(buffer[position:], batch_bytes_max)
        except Bad as error:
            if not batches:
                raise
            bad_position, unsupported = position, error.unsupported
            break
        if batch is None:
            break
        if batches and (
            batch.base <= batches[-1].last or plain_bytes + batch.plain_bytes > plain_bytes_max
        ):
            is_full = batch.base > batches[-1].last
            bad_position = None if is_full else position
            break
        batches.append(batch)
        plain_bytes += batch.plain_bytes
        position += len(batch.wire)
    if not batches:
        return None
    return Run(batches, plain_bytes, position, bad_position, unsupported, is_full)


def _read_batch(data: bytes, batch_bytes_max: int) -> _Batch | None:
    if len(data) < HEADER.size:
        return None
    fields = HEADER.unpack_from(data)
    if fields[3] != 2:
        raise Bad("magic", unsupported=fields[3] in (0, 1))
    size = fields[1] + 12
    if size < HEADER.size:
        raise Bad("batch_length")
    if size > batch_bytes_max:
        raise Bad("too large", unsupported=True)
    if not 0 <= fields[0] < 2**63 - 2**32 or fields[6] < 0:
        raise Bad("offsets")
    if fields[5] & 7 > 4:
        raise Bad("codec")
    if size > len(data):
        return None
    wire = data[:size]
    if google_crc32c.value(wire[21:]) != fields[4]:
        raise Bad("crc")
    payload = _decompress(fields[5] & 7, wire[61:])
    if len(payload) + 61 > batch_bytes_max:
        raise Bad("too large", unsupported=True)
    records = list(_read_records(payload, fields))
    return _Batch(wire[:61], wire, fields, records, len(payload) + 61)


def _decompress(codec: int, data: bytes) -> bytes:
    if codec == 0 or not data:
        return data
    try:
        if codec == 1:
            return gzip.decompress(data)
        if codec == 2:
            return _decompress_snappy(data)
        if codec == 3:
            return lz4.frame.decompress(data)
        return zstandard.ZstdDecompressor().stream_reader(data).read()
    except Exception as error:
        raise Bad("compressed data") from error


def _decompress_snappy(data: bytes) -> bytes:
    if not data.startswith(b"\x82SNAPPY\0"):
        return bytes(cramjam.snappy.decompress_raw(data))
    out, at = b"", 16
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        out += bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return out


def _read_records(payload: bytes, fields: tuple[int, ...]) -> Iterator[_Record]:
    if fields[12] < 0 or fields[12] > len(payload) // 7:
        raise Bad("record count")
    reader, previous = _Reader(payload), -1
    for _ in range(fields[12]):
        start = reader.at
        record = _Reader(reader.take(reader.varint()))
        record.take(1)
        record.varint(10)
        delta = record.varint()
        if not previous < delta <= fields[6]:
            raise Bad("offset delta")
        previous = delta
        key = record.nullable()
        record.nullable()
        header_count = record.varint()
        if header_count < 0:
            raise Bad("header count")
        for _ in range(header_count):
            if record.nullable() is None:
                raise Bad("header key")
            record.nullable()
        if record.at != len(record.data):
            raise Bad("record length")
        if fields[5] & 0x20 and len(key or b"") < 4:
            raise Bad("control key")
        yield _Record(fields[0] + delta, key, payload[start : reader.at])
    if reader.at != len(payload):
        raise Bad("bytes remain")


JOIN_BATCH_MAX = 8 * 1024
JOINED_MAX = 128 * 1024
TIMESTAMP_MAX = 2**47 - 1


def _join_all(batches: list[_Batch]) -> list[_Batch]:
    """Runs of small batches as one batch each; all as they are when a timestamp is odd."""
    runs: list[list[_Batch]] = []
    for batch in batches:
        size = batch.plain_bytes - 61 + sum(b.plain_bytes - 61 for b in runs[-1]) if runs else 0
        if runs and size <= JOINED_MAX and _follows(runs[-1][-1], batch):
            runs[-1].append(batch)
        else:
            runs.append([batch])
    try:
        return [run[0] if len(run) == 1 else _join(run) for run in runs]
    except OverflowError:
        return batches


def _follows(first: _Batch, second: _Batch) -> bool:
    a, b = first.fields, second.fields
    if not (_is_small(first) and _is_small(second)) or b[0] != first.last + 1:
        return False
    if (a[2], a[5] & ~7, a[9], a[10]) != (b[2], b[5] & ~7, b[9], b[10]):
        return False
    if a[5] & 8 and a[8] != b[8]:
        return False
    if a[9] >= 0:
        return b[11] == a[11] + a[12]
    return b[11] == a[11] and not a[5] & 16


def _is_small(batch: _Batch) -> bool:
    is_dense = len(batch.records) == batch.fields[6] + 1
    is_data = not batch.fields[5] & 0x60 and 0 <= batch.fields[7] <= TIMESTAMP_MAX
    return is_dense and is_data and batch.plain_bytes - 61 <= JOIN_BATCH_MAX


def _join(run: list[_Batch]) -> _Batch:
    fields = list(run[0].fields)
    records = []
    for batch in run:
        for record in batch.records:
            whole = _Reader(record.data)
            body = _Reader(whole.take(whole.varint()))
            attributes = body.take(1)
            timestamp = batch.fields[7] + body.varint(10)
            if not 0 <= timestamp <= TIMESTAMP_MAX:
                raise OverflowError
            body.varint()
            moved = attributes + write_varint(timestamp - fields[7])
            moved += write_varint(record.offset - fields[0]) + body.data[body.at :]
            data = write_varint(len(moved)) + moved
            records.append(_Record(record.offset, record.key, data))
    payload = b"".join(record.data for record in records)
    fields[1], fields[5] = 49 + len(payload), fields[5] & ~7
    fields[6] = run[-1].last - run[0].base
    fields[8] = max(batch.fields[8] for batch in run)
    fields[12] = len(records)
    wire = _seal(HEADER.pack(*fields) + payload)
    return _Batch(wire[:61], wire, tuple(fields), records, len(wire))


def lane_of(record_key: bytes | None, offset: int, limits: Sequence[int]) -> int:
    """Return the lane of a record: the first whose exclusive limit is above the hash."""
    hashed = offset.to_bytes(8, "little") if record_key is None else record_key
    return bisect_right(limits, xxhash.xxh64_intdigest(hashed, seed=42) >> 1)


def _slice_lane(
    batches: list[_Batch], lane: int, limits: Sequence[int], owners: Sequence[int]
) -> Slice | None:
    result, waiting = Slice(), list[_Batch]()
    for batch in batches:
        if batch.is_control and batch.records:
            _add_empty(result, waiting)
            result.add(batch.wire)
            continue
        own = [r for r in batch.records if owners[lane_of(r.key, r.offset, limits)] == lane]
        if not own:
            waiting.append(batch)
            continue
        _add_empty(result, waiting)
        data = b"".join(record.data for record in own)
        fields = list(batch.fields)
        fields[1], fields[5], fields[12] = 49 + len(data), fields[5] & ~7, len(own)
        result.add(_seal(HEADER.pack(*fields) + data), len(own), own[-1].offset)
    if not result.ends:
        return None
    _add_empty(result, waiting)
    return result


def _add_empty(result: Slice, waiting: list[_Batch]) -> None:
    """Write the waiting batches as one empty header, or more if their offsets span an int32."""
    while waiting:
        base = waiting[0].base
        fitting = [batch for batch in waiting if batch.last - base < 2**31]
        del waiting[: len(fitting)]
        last = fitting[-1]
        fields = (base, 49, last.fields[2], 2, 0, 0, last.last - base, -1, -1, -1, -1, -1, 0)
        result.add(_seal(HEADER.pack(*fields)))


def _seal(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", google_crc32c.value(batch[21:])) + batch[21:]


def _abort_markers(batches: list[_Batch]) -> Iterator[tuple[int, int]]:
    for batch in batches:
        for record in batch.records if batch.is_control else ():
            assert record.key is not None
            if record.key[2:4] == b"\0\0":
                yield batch.fields[9], record.offset


def _holes(batches: list[_Batch]) -> Iterator[tuple[int, int]]:
    covered = batches[0].base
    for batch in batches:
        if batch.is_control or not batch.records:
            continue
        if batch.records[0].offset > covered:
            yield covered, batch.records[0].offset - 1
        covered = batch.records[-1].offset + 1
    if covered <= batches[-1].last:
        yield covered, batches[-1].last


SLICE_LISTS = (
    "base_offsets",
    "last_offsets",
    "ends",
    "record_counts",
    "last_record_offsets",
)
BLOCK_FIELDS = (
    "base_offset", "next_offset", "leader_epoch", "epochs", "record_count", "plain_bytes",
)  # fmt: skip


def assert_same_block(actual: Any, expected: Block | None) -> None:
    """Compare a `SplitBlock` with the twin's answer, field by field."""
    if expected is None or actual is None:
        assert actual is None and expected is None
        return
    for name in (*BLOCK_FIELDS, "wire_bytes"):
        assert getattr(actual, name) == getattr(expected, name), name
    assert list(actual.abort_markers) == expected.abort_markers
    assert list(actual.holes) == expected.holes
    # A bad batch that would not have fitted anyway may be reported already or in the next block.
    if not expected.is_full:
        reported = actual.error.position if actual.error else None
        assert reported == expected.bad_position
    assert len(actual.outputs) == len(expected.outputs)
    for lane, (ours, theirs) in enumerate(zip(actual.outputs, expected.outputs, strict=True)):
        assert (ours is None) == (theirs is None), f"lane {lane}"
        if ours is not None and theirs is not None:
            _assert_same_slice(ours, theirs, lane)


def _assert_same_slice(ours: Any, theirs: Slice, lane: int) -> None:
    for name in SLICE_LISTS:
        assert getattr(ours, name).tolist() == getattr(theirs, name), f"lane {lane}: {name}"
    assert ours.meta[META_PRODUCER_ID].tolist() == theirs.producer_ids, f"lane {lane}: producers"
    assert bytes(ours.data) == theirs.data, f"lane {lane}: data"
    assert ours.size_bytes == len(theirs.data)
    assert ours.record_count == sum(theirs.record_counts)


def assert_same_answer(
    buffer: bytes, key_split: KeySplit, plain_bytes_max: int, batch_bytes_max: int
) -> None:
    """Kernel and twin split alike, or refuse alike at the same place."""
    bounds = {"plain_bytes_max": plain_bytes_max, "batch_bytes_max": batch_bytes_max}
    by_twin = partial(split_block, buffer, key_split.limits.tolist(), key_split.outputs)
    expected = _outcome(by_twin, bounds)
    actual = _outcome(partial(kernel_split_block, buffer, key_split), bounds)
    if not isinstance(expected, Bad):
        assert not isinstance(actual, BatchCorrupt), f"refused what the twin accepts: {actual}"
        assert_same_block(actual, expected)
        return
    assert isinstance(actual, BatchCorrupt), f"accepted what the twin refuses: {expected}"
    assert actual.position == 0
    assert isinstance(actual, BatchUnsupported) == expected.unsupported


def _outcome(split: Callable[..., Any], bounds: dict[str, int]) -> Any:
    try:
        return split(**bounds)
    except (Bad, BatchCorrupt) as error:
        return error
