"""The records of a fetch answer, slow and obvious: what `keylane.kernel.fetched` must agree with.

Source: KIP-98; Fetcher of Apache Kafka 4.3 (CompletedFetch.nextFetchedRecord) for transactions.
"""

from __future__ import annotations

from typing import Any

from keylane.client.raw_headers import raw_pairs
from keylane.client.records import RecordList
from keylane.client.values import TopicPartition
from keylane.errors import BatchCorrupt
from keylane.kernel.fetched import read_fetched
from tests.reference.kernel import Bad, Run, _Batch, read_run
from tests.reference.pick import _decode

PART = TopicPartition("t", 3)


def visible(run: Run, from_offset: int, aborted: list[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """Return the records that a consumer gets, with the leader epoch of each."""
    found = []
    waiting, active = sorted(aborted, key=lambda each: each[1]), set[int]()
    for batch in run.batches:
        while waiting and waiting[0][1] <= batch.last:
            active.add(waiting.pop(0)[0])
        producer_id = batch.fields[9]
        if batch.is_control:
            if _is_abort(batch):
                active.discard(producer_id)
            continue
        if batch.fields[5] & 0x10 and producer_id in active:
            continue
        for record in batch.records:
            each = _decode(batch, record)
            if each.offset >= from_offset:
                timestamp = (each.timestamp + 2**63) % 2**64 - 2**63
                fields = (each.offset, timestamp, each.key, each.value, each.headers)
                found.append((*fields, batch.fields[2]))
    return found


def _is_abort(batch: _Batch) -> bool:
    keys = [record.key for record in batch.records]
    return bool(keys) and keys[-1] is not None and keys[-1][2:4] == b"\0\0"


def assert_same(
    buffer: bytes, from_offset: int, aborted: list[tuple[int, int]], bytes_max: int
) -> None:
    """Kernel and twin read alike, or refuse alike."""
    bounds = {"plain_bytes_max": bytes_max, "batch_bytes_max": bytes_max}
    try:
        run = read_run(buffer, **bounds)
    except Bad:
        run = None
        refused = True
    else:
        refused = False
    # As an answer has them: between other fields, or a small part of all.
    before, behind = 7 * (len(buffer) % 2), (0, 9, len(buffer))[len(buffer) // 2 % 3]
    held = memoryview(b"\xff" * before + buffer + buffer[:behind])
    data = held[before : before + len(buffer)]
    try:
        found = read_fetched(data, from_offset=from_offset, aborted=aborted, **bounds)
    except BatchCorrupt:
        assert refused
        return
    assert not refused
    assert (found is None) == (run is None)
    if found is None or run is None:
        return
    expected = visible(run, from_offset, aborted)
    records = RecordList(PART, found, 0, len(found))
    assert [record[:2] for record in records] == [PART] * len(expected)
    assert [
        (
            each.offset,
            each.timestamp_ms,
            each.key,
            each.value,
            raw_pairs(each.raw_headers),
            each.leader_epoch,
        )
        for each in records
    ] == expected
    first, stop = len(found) // 3, len(found) - len(found) // 4
    part = RecordList(PART, found, first, stop)
    assert list(part) == [part[index] for index in range(len(part))] == list(records)[first:stop]
    assert records.offsets.tolist() == [each[0] for each in expected]
    assert found.next_offset == run.batches[-1].last + 1
    assert found.base_offset == run.batches[0].base
