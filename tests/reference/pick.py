"""Records held one by one, slow and obvious: what `keylane.kernel.pick` must agree with.

The twin shares no code with keylane. Only the assertions at the end call the kernel.
Source: Kafka documentation, "Record Batch" and "Record".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.kernel.pick import RecordBlock, index_records
from tests.reference.batches import HEADER, Header
from tests.reference.kernel import Bad, Run, _Batch, _Reader, _Record, _seal, read_run


@dataclass(frozen=True)
class Decoded:
    """A record as a consumer sees it; the timestamp is the batch's where the broker set it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


def held_records(run: Run) -> list[tuple[_Batch, _Record]]:
    """Return each data record with its batch."""
    return [(batch, record) for batch in run.batches if not batch.is_control
            for record in batch.records]  # fmt: skip


def pick(run: Run, rows: Sequence[int]) -> bytes:
    """Write the chosen records, one batch per source batch of theirs."""
    chosen = [held_records(run)[row] for row in rows]
    written = b""
    for batch in run.batches:
        own = [record for source, record in chosen if source is batch]
        if not own:
            continue
        data = b"".join(record.data for record in own)
        fields = list(batch.fields)
        fields[1], fields[5], fields[12] = 49 + len(data), fields[5] & ~7, len(own)
        fields[6] = own[-1].offset - batch.base
        written += _seal(HEADER.pack(*fields) + data)
    return written


def decode(run: Run) -> list[Decoded]:
    """Read the fields of each data record."""
    return [_decode(batch, record) for batch, record in held_records(run)]


def _decode(batch: _Batch, record: _Record) -> Decoded:
    whole = _Reader(record.data)
    whole.varint()
    whole.take(1)
    timestamp = batch.fields[7] + whole.varint(10)
    offset = batch.base + whole.varint()
    key, value = whole.nullable(), whole.nullable()
    headers = tuple(_read_headers(whole))
    return Decoded(
        offset, batch.fields[8] if batch.fields[5] & 8 else timestamp, key, value, headers
    )


def _read_headers(record: _Reader) -> Iterator[Header]:
    for _ in range(record.varint()):
        name = record.nullable()
        assert name is not None
        yield name, record.nullable()


def point_of(key: bytes | None) -> int:
    """Return the point of a key, -1 without one."""
    return -1 if key is None else xxhash.xxh64_intdigest(key, seed=42) >> 1


def some_rows(count: int) -> list[list[int]]:
    """Choices among so many records: none, all, one, every third, a run in the middle."""
    every = list(range(count))
    return [[], every, every[:1], every[-1:], every[1::3], every[count // 3 : count // 3 * 2]]


def assert_same_block(block: RecordBlock, run: Run) -> None:
    """Compare a block with the twin's answer, and what either picks of it."""
    expected = held_records(run)
    sources = [batch for batch in run.batches if batch.records and not batch.is_control]
    assert block.offsets.tolist() == [record.offset for _, record in expected]
    assert block.points.tolist() == [point_of(record.key) for _, record in expected]
    assert block.sizes.tolist() == [len(record.data) for _, record in expected]
    assert block.base_offsets.tolist() == [batch.base for batch in sources]
    of_batch = [number for number, batch in enumerate(sources) for _ in batch.records]
    assert block.batch_of.tolist() == of_batch
    last = run.batches[-1]
    assert (block.next_offset, block.leader_epoch) == (last.last + 1, last.fields[2])
    assert block.wire_bytes == run.wire_bytes
    # A bad batch that would not have fitted anyway may be reported already or in the next block.
    if not run.is_full:
        assert (block.error.position if block.error else None) == run.bad_position
    for rows in some_rows(len(expected)):
        assert_same_choice(block, run, rows)


def assert_same_choice(block: RecordBlock, run: Run, rows: list[int]) -> None:
    """Compare chosen records: their batches, what these decode to, and the same after compact."""
    picked = block.pick(rows)
    assert picked == pick(run, rows)
    if rows:
        again = read_run(picked, plain_bytes_max=len(picked), batch_bytes_max=len(picked))
        assert again is not None and again.wire_bytes == len(picked)
        everything = decode(run)
        assert decode(again) == [everything[row] for row in rows]
    compact = block.compact(rows)
    assert compact.pick(range(len(rows))) == picked
    assert compact.pick(range(0, len(rows), 2)) == pick(run, rows[::2])
    assert compact.compact(range(1, len(rows))).pick(range(len(rows) - 1)) == pick(run, rows[1:])
    for name in ("offsets", "points", "sizes"):
        held, kept = getattr(block, name).tolist(), getattr(compact, name).tolist()
        assert kept == [held[row] for row in rows]
    base_of = [block.base_offsets[batch] for batch in block.batch_of.tolist()]
    assert [compact.base_offsets[batch] for batch in compact.batch_of.tolist()] == [
        base_of[row] for row in rows
    ]
    assert len(compact.base_offsets) == len({base_of[row] for row in rows})
    same = ("next_offset", "leader_epoch", "wire_bytes", "error")
    assert all(getattr(compact, name) == getattr(block, name) for name in same)


def assert_same_answer(buffer: bytes, plain_bytes_max: int, batch_bytes_max: int) -> None:
    """Kernel and twin hold alike, or refuse alike at the same place."""
    bounds = {"plain_bytes_max": plain_bytes_max, "batch_bytes_max": batch_bytes_max}
    expected, actual = _outcome(read_run, buffer, bounds), _outcome(index_records, buffer, bounds)
    if isinstance(expected, Bad):
        assert isinstance(actual, BatchCorrupt), f"accepted what the twin refuses: {expected}"
        assert actual.position == 0
        assert isinstance(actual, BatchUnsupported) == expected.unsupported
        return
    assert not isinstance(actual, BatchCorrupt), f"refused what the twin accepts: {actual}"
    assert (actual is None) == (expected is None)
    if actual is not None:
        assert_same_block(actual, expected)


def _outcome(read: Any, buffer: bytes, bounds: dict[str, int]) -> Any:
    try:
        return read(buffer, **bounds)
    except (Bad, BatchCorrupt) as error:
        return error
