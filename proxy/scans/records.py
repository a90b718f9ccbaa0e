"""Scans that nodes publish to each other, as bytes: records of `__keylane_scans`.

Source: docs/decisions/021; `keylane.offsets.scan` for the meaning of a scan.

    packet = int16 version, int32 node number, 16 bytes life of the process, then
             splits   int32 count, and each: int8 kind, then
                      even (0)       int32 intervals
                      cut (1)        int32 cuts, and each 8 bytes; int8 flag, and if it is 1 an
                                     int16 output of each interval
                      hashed (3)     int32 intervals, int32 partition count: even lanes by murmur2
                      reference (2)  16 bytes: the digest of a split of an earlier packet
             topics   int32 count, and each: topic id, name
             items    int32 count, and each: int32 size, int8 kind, then
                      scan (0)       int32 topic, int32 partition, int32 split, int64 start,
                                     int64 length, int64 log start, int32 leader epoch, 3 columns
                                     with a value per output (last, records, bytes), int32
                                     holes, 2 columns (first, length)
                      cut (1)        int32 topic, int32 partition, int64 end, int32 leader epoch
    column = int8 bytes per value (0: all are 0), the values

Integers are big-endian, those of columns and cuts little-endian and unsigned. Offsets in columns
count from the scan's start, the last record's from one offset before it: 0 is no record. A packet
of another version was written by another version of keylane.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keylane.bounded import BoundedDict
from keylane.config.own_names import SCANS_TOPIC
from keylane.errors import FrameInvalid, ScansInvalid
from keylane.keyrange.hash import XXH64, murmur2_hash, odd_part
from keylane.keyrange.key_split import KeySplit, PartitionSplit, even_split
from keylane.keyrange.space import LANE_COUNT_MAX
from keylane.offsets.lineage import PartitionKey
from keylane.wire.primitives import INT8, INT32, Buffer, Reader, Writer

TOPIC_NAME: Final = SCANS_TOPIC
VERSION: Final = 0
EVEN: Final = 0
CUTS: Final = 1
REFERENCE: Final = 2
HASHED: Final = 3
SCAN_ITEM: Final = 0
CUT_ITEM: Final = 1
HEAD: Final = struct.Struct(">hi16s")
SCAN_HEAD: Final = struct.Struct(">biiiqqqi")
CUT_HEAD: Final = struct.Struct(">biiqi")
SPLIT_BYTES_MIN: Final = 1 + 4
TOPIC_BYTES_MIN: Final = 16 + 2
ITEM_BYTES_MIN: Final = 4 + CUT_HEAD.size
DIGEST_BYTES: Final = 16
OFFSET_MAX: Final = 2**63 - 1
EPOCH_MAX: Final = 2**31 - 1
PACKET_BYTES_MAX: Final = 2 * 1024**2
"""Bound of a read: twice the default of brokers, room for a full packet and one scan."""
NO_RECORD: Final = -1
NO_EPOCH: Final = -1
PACKET_BYTES: Final = 256 * 1024
"""A packet ends behind this; well below the 1 MiB that brokers and clients take by default."""
OUTPUTS_PUBLISHED_MAX: Final = 8 * 1024
INTERVALS_PUBLISHED_MAX: Final = 16 * 1024
"""Splits with more outputs are not published, so that one scan fits a packet of 0.5 MiB."""
OUTPUTS_PACKET: Final = 64 * 1024
"""A packet ends behind this, too: an output may take no byte there, but 24 in a reader's memory."""
HOLES_PUBLISHED_MAX: Final = 4096
"""Holes of a scan; the highest are kept, as in `keylane.offsets.scan`."""
SPLITS_KNOWN_MAX: Final = 1000
WIDTHS: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
OUTPUT_TYPE: Final[np.dtype[Any]] = np.dtype("<i2")

Columns = NDArray[np.int64]


class Sender(NamedTuple):
    """The sender of a packet."""

    number: int
    life: bytes
    """16 random bytes of the process: a node that was started anew is another sender."""


@dataclass(slots=True, eq=False)
class Scan:
    """A block of which all offsets in `[start, end)` were looked at."""

    topic: str
    at: PartitionSplit
    start: int
    end: int
    columns: Columns
    """(3, outputs): last record or NO_RECORD, records, bytes."""
    holes: tuple[tuple[int, int], ...]
    """Inclusive ranges without a record of any lane."""
    log_start_offset: int
    leader_epoch: int
    """Leader epoch of the last batch, -1 when not known."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The log was cut at `end` by a new leader."""

    place: PartitionKey
    end: int
    leader_epoch: int
    """Lower bound of the leader epoch of records behind `end`."""


News = Scan | Cut


@dataclass(frozen=True, slots=True)
class Packet:
    """The content of one record, in order."""

    sender: Sender
    news: tuple[News, ...]
    """Without scans whose split is not known."""


def is_published(split: KeySplit) -> bool:
    """Return whether scans by this split are published at all."""
    if split.key_hash != XXH64 and not _is_even(split):
        return False
    return (
        split.output_count <= OUTPUTS_PUBLISHED_MAX and len(split.lows) <= INTERVALS_PUBLISHED_MAX
    )


def _is_even(split: KeySplit) -> bool:
    count, key_hash = len(split.lows), split.key_hash
    if count > LANE_COUNT_MAX or key_hash.odd_lanes not in (0, odd_part(count)):
        return False
    even = even_split(count) if key_hash == XXH64 else even_split(count, key_hash)
    return split == even


def digest_of(split: KeySplit) -> bytes:
    """Return 16 bytes that name a split; equal for equal splits."""
    digest = hashlib.sha256(split.limits.astype("<u8").tobytes())
    digest.update(split.output_of.astype("<i2").tobytes())
    digest.update(split.key_hash.tag.encode())
    return digest.digest()[:DIGEST_BYTES]


class SplitBook(BoundedDict[bytes, KeySplit]):
    """Published splits by digest, so that a scan need not repeat thousands of cuts."""

    def __init__(self) -> None:
        super().__init__(SPLITS_KNOWN_MAX)

    def learn(self, split: KeySplit) -> KeySplit:
        """Remember a split; return the object that is kept, the same for equal splits."""
        digest = digest_of(split)
        known = self.use(digest)
        if known is None:
            known = self[digest] = split
        return known


# -- writing -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Draft:
    """A packet that is being written."""

    is_known: Callable[[KeySplit], bool]
    splits: dict[KeySplit, int] = field(default_factory=dict)
    topics: dict[tuple[uuid.UUID, str], int] = field(default_factory=dict)
    split_table: Writer = field(default_factory=lambda: Writer(flexible=False))
    items: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    outputs: int = 0
    """Of all scans."""

    @property
    def is_full(self) -> bool:
        """Return whether the next item belongs into another packet."""
        return self.size_bytes > PACKET_BYTES or self.outputs > OUTPUTS_PACKET

    def to_bytes(self, sender: Sender) -> bytes:
        """Return the packet as it is now."""
        writer = Writer(flexible=False)
        writer.raw(HEAD.pack(VERSION, sender.number, sender.life))
        writer.count(len(self.splits))
        writer.raw(self.split_table.to_bytes())
        writer.count(len(self.topics))
        for topic_id, name in self.topics:
            writer.raw(topic_id.bytes)
            writer.string(name)
        writer.count(len(self.items))
        for item in self.items:
            writer.count(len(item))
            writer.raw(item)
        return writer.to_bytes()

    def add(self, item: bytes) -> None:
        """Put an item behind the others."""
        self.items.append(item)
        self.size_bytes += len(item)

    def topic_number(self, topic_id: uuid.UUID, name: str) -> int:
        """Return the place of a topic in the table."""
        return self.topics.setdefault((topic_id, name), len(self.topics))

    def split_number(self, split: KeySplit) -> int:
        """Return the place of a split in the table."""
        number = self.splits.get(split)
        if number is None:
            number = self.splits[split] = len(self.splits)
            self.size_bytes += _write_split(self.split_table, split, self.is_known)
        return number


def write_packets(
    sender: Sender, news: Iterable[News], is_known: Callable[[KeySplit], bool]
) -> Iterator[bytes]:
    """Encode news in order, in as few packets as fit.

    is_known: returns whether a split that is not even was published, so that its digest will do;
    else the packet holds it. Splits that are not `is_published` must not come here.
    """
    draft = _Draft(is_known)
    for item in news:
        if draft.is_full:
            yield draft.to_bytes(sender)
            draft = _Draft(is_known)
        draft.add(_write_scan(draft, item) if isinstance(item, Scan) else _write_cut(draft, item))
    if draft.items:
        yield draft.to_bytes(sender)


def _write_split(writer: Writer, split: KeySplit, is_known: Callable[[KeySplit], bool]) -> int:
    """Write a row of the table; return its size in bytes."""
    count = len(split.lows)
    if split.key_hash != XXH64:  # even, or it were not published
        writer.int8(HASHED)
        writer.int32(count)
        writer.int32(split.key_hash.partition_count)
        return SPLIT_BYTES_MIN + 4
    if _is_even(split):
        writer.int8(EVEN)
        writer.int32(count)
        return SPLIT_BYTES_MIN
    if is_known(split):
        writer.int8(REFERENCE)
        writer.raw(digest_of(split))
        return 1 + DIGEST_BYTES
    writer.int8(CUTS)
    writer.int32(count - 1)
    writer.raw(split.limits[:-1].astype("<u8").tobytes())
    writer.int8(0 if split.outputs is None else 1)
    writer.raw(split.output_of.astype("<i2").tobytes())
    return SPLIT_BYTES_MIN + 10 * count


def _write_scan(draft: _Draft, scan: Scan) -> bytes:
    lasts, counts, sizes = scan.columns
    topic_id, partition, key_split = scan.at
    draft.outputs += key_split.output_count
    parts = [
        SCAN_HEAD.pack(
            SCAN_ITEM,
            draft.topic_number(topic_id, scan.topic),
            partition,
            draft.split_number(key_split),
            scan.start,
            scan.end - scan.start,
            scan.log_start_offset,
            scan.leader_epoch,
        ),
        *_column(np.where(lasts != NO_RECORD, lasts - (scan.start - 1), 0)),
        *_column(counts),
        *_column(sizes),
        INT32.pack(min(len(scan.holes), HOLES_PUBLISHED_MAX)),
    ]
    if scan.holes:
        holes = np.array(scan.holes[-HOLES_PUBLISHED_MAX:], np.int64)
        parts += _column(holes[:, 0] - scan.start)
        parts += _column(holes[:, 1] - holes[:, 0] + 1)
    return b"".join(parts)


def _write_cut(draft: _Draft, cut: Cut) -> bytes:
    topic_id, partition = cut.place
    number = draft.topic_number(topic_id, "")
    return CUT_HEAD.pack(CUT_ITEM, number, partition, cut.end, cut.leader_epoch)


def _column(values: Columns) -> tuple[bytes, bytes]:
    top = int(values.max())
    if top == 0:
        return b"\0", b""
    width = 1 if top < 1 << 8 else 2 if top < 1 << 16 else 4 if top < 1 << 32 else 8
    return INT8.pack(width), values.astype(WIDTHS[width]).tobytes()


# -- reading -----------------------------------------------------------------------------


def read_sender(data: Buffer) -> Sender | None:
    """Return the sender of a packet, without a look at the rest; None: it is of another version.

    Raises: ScansInvalid.
    """
    if not HEAD.size <= len(data) <= PACKET_BYTES_MAX:
        raise ScansInvalid(f"packet has {len(data)} bytes")
    version, number, life = HEAD.unpack_from(data)
    return Sender(number, life) if version == VERSION else None


def read_packet(data: Buffer, book: SplitBook) -> Packet | None:
    """Decode a packet; its splits go into the book. None: it is of another version.

    Raises: ScansInvalid, it is no packet; its splits may be in the book all the same.
    """
    sender = read_sender(data)
    if sender is None:
        return None
    try:
        reader = Reader(data, HEAD.size, flexible=False)
        splits = [_read_split(reader, book) for _ in range(reader.count(SPLIT_BYTES_MIN))]
        topics = [
            (uuid.UUID(bytes=reader.uuid()), reader.string())
            for _ in range(reader.count(TOPIC_BYTES_MIN))
        ]
        found, outputs = list[News](), 0
        for _ in range(reader.count(ITEM_BYTES_MIN)):
            _expect(f"{outputs} outputs", that=outputs <= OUTPUTS_PACKET)
            item = _read_item(reader, topics, splits)
            if item is not None:
                found.append(item)
            outputs += item.at.key_split.output_count if isinstance(item, Scan) else 0
        reader.end()
    except (FrameInvalid, ValueError, IndexError, struct.error) as error:
        raise ScansInvalid(str(error)) from None
    return Packet(sender, tuple(found))


def _read_split(reader: Reader, book: SplitBook) -> KeySplit | None:
    """Read a row of the table; None: its reference is not known. Raises: ValueError too."""
    kind = reader.int8()
    if kind == REFERENCE:
        return book.use(reader.uuid())
    count = reader.int32()
    if kind in (EVEN, HASHED):
        _expect(f"{count} even intervals", that=1 <= count <= LANE_COUNT_MAX)
        if kind == EVEN:
            return even_split(count)
        partitions = reader.int32()
        _expect(f"{partitions} partitions", that=partitions >= 1)
        return even_split(count, murmur2_hash(partitions, count))
    _expect(f"split of kind {kind}", that=kind == CUTS)
    _expect(f"{count} cuts", that=0 <= count < INTERVALS_PUBLISHED_MAX)
    cuts = _values(reader, WIDTHS[8], count)
    has_outputs = reader.int8()
    _expect(f"flag {has_outputs}", that=has_outputs in (0, 1))
    outputs = _values(reader, OUTPUT_TYPE, count + 1) if has_outputs else None
    split = KeySplit(tuple(cuts.tolist()), None if outputs is None else tuple(outputs.tolist()))
    _expect(f"{split.output_count} outputs", that=split.output_count <= OUTPUTS_PUBLISHED_MAX)
    return book.learn(split)


def _read_item(
    outer: Reader, topics: list[tuple[uuid.UUID, str]], splits: list[KeySplit | None]
) -> News | None:
    """Read one item; None: its split is not known. Raises: FrameInvalid, IndexError."""
    size = outer.int32()
    start = outer.advance(size)
    reader = Reader(outer.buffer[start : start + size], flexible=False)
    _expect("empty item", that=size > 0)
    if reader.buffer[0] == CUT_ITEM:
        _expect(f"cut of {size} bytes", that=size == CUT_HEAD.size)
        _, topic, partition, end, epoch = CUT_HEAD.unpack_from(reader.buffer)
        _expect(f"topic {topic}, partition {partition}", that=topic >= 0 and partition >= 0)
        _expect(f"cut at {end}, epoch {epoch}", that=end >= 0 and epoch >= NO_EPOCH)
        return Cut((topics[topic][0], partition), end, epoch)
    kind, topic, partition, split_number, first, length, log_start, epoch = SCAN_HEAD.unpack_from(
        reader.buffer, reader.advance(SCAN_HEAD.size)
    )
    _expect(f"item of kind {kind}", that=kind == SCAN_ITEM)
    _expect(f"numbers below 0 in {size} bytes", that=min(topic, partition, split_number) >= 0)
    is_region = first >= 0 and 1 <= length <= OFFSET_MAX - first
    is_region = is_region and log_start >= NO_RECORD and epoch >= NO_EPOCH
    _expect(f"{length} offsets from {first}, epoch {epoch}", that=is_region)
    topic_id, name = topics[topic]
    split = splits[split_number]
    if split is None:
        return None
    columns = _read_columns(reader, split.output_count, first, length)
    scan = Scan(
        topic=name,
        at=PartitionSplit(topic_id, partition, split),
        start=first,
        end=first + length,
        columns=columns,
        holes=_read_holes(reader, first, length),
        log_start_offset=log_start,
        leader_epoch=epoch,
    )
    reader.end()
    return scan


def _read_columns(reader: Reader, outputs: int, start: int, length: int) -> Columns:
    """Read the columns of a scan, in the shape of `Scan`. Raises: FrameInvalid."""
    columns = np.stack([_read_column(reader, outputs) for _ in range(3)])
    lasts, counts, sizes = columns
    # No more records fit up to the last one, which lies in the region.
    fits = (counts <= lasts) & (lasts <= length) & ((counts > 0) == (lasts > 0))
    _expect("records outside of the scan", that=bool(fits.all()))
    _expect("bytes beyond 2^63", that=sum(sizes.tolist()) <= OFFSET_MAX)  # they are added up
    columns[0] = np.where(lasts > 0, lasts + (start - 1), NO_RECORD)
    return columns


def _read_holes(reader: Reader, start: int, length: int) -> tuple[tuple[int, int], ...]:
    count = reader.count(0)
    _expect(f"{count} holes", that=count <= HOLES_PUBLISHED_MAX)
    if not count:
        return ()
    firsts, sizes = _read_column(reader, count), _read_column(reader, count)
    fits = (sizes >= 1) & (sizes <= length) & (firsts <= length - sizes)
    _expect("holes outside of the scan", that=bool(fits.all()))
    firsts += start
    return tuple(zip(firsts.tolist(), (firsts + (sizes - 1)).tolist(), strict=True))


def _read_column(reader: Reader, count: int) -> Columns:
    width = reader.int8()
    if width == 0:
        return np.zeros(count, np.int64)
    kind = WIDTHS.get(width)
    if kind is None:
        raise FrameInvalid(f"column has {width} bytes per value")
    values = _values(reader, kind, count).astype(np.int64)
    _expect("value beyond 2^63", that=int(values.min()) >= 0)
    return values


def _values(reader: Reader, kind: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return a view of the next `count` values. Raises: FrameInvalid, they are not all there."""
    start = reader.advance(kind.itemsize * count)
    return np.frombuffer(reader.buffer, kind, count, start)


def _expect(otherwise: str, *, that: bool) -> None:
    if not that:
        raise FrameInvalid(otherwise)
