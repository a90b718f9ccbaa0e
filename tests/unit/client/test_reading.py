"""The state of one partition, by example: answers that are read while the next is on its way."""

from __future__ import annotations

import pytest

from keylane.client.reading import Reading
from keylane.client.values import Committed, TopicPartition
from keylane.kernel.fetched import FetchedRecords, read_fetched
from tests.reference.batches import Batch, Record, write_batch

BYTES_MAX = 1 << 20
PART = TopicPartition("t", 0)


def answer(base: int, count: int, from_offset: int | None = None) -> FetchedRecords:
    records = tuple(Record(index, b"k", b"v") for index in range(count))
    fields = read_fetched(
        write_batch(Batch(base, records)),
        from_offset=base if from_offset is None else from_offset,
        plain_bytes_max=BYTES_MAX,
        batch_bytes_max=BYTES_MAX,
    )
    assert fields is not None
    return fields


def started(offset: int = 0, ranges: tuple[tuple[int, int], ...] = ()) -> Reading:
    reading = Reading(PART)
    reading.begin(Committed(offset, ranges))
    return reading


def take_all(reading: Reading) -> list[int]:
    found = []
    while (records := reading.take(3)) is not None:
        found += records.offsets.tolist()
    return found


def test_the_next_fetch_begins_behind_what_is_still_read() -> None:
    """And memory counts from the answer's arrival until the records are given."""
    reading = started()

    reading.expect(5, 1_000)
    reading.expect(9, 1_000)
    assert (reading.fetch_offset, reading.waiting_bytes) == (9, 2_000)
    reading.add(answer(0, 5), 0)
    reading.add(answer(5, 4), 5)

    assert take_all(reading) == list(range(9))
    assert (reading.fetch_offset, reading.waiting_bytes, reading.life) == (9, 0, 1)


def test_an_answer_that_proves_shorter_is_fetched_on_from_there() -> None:
    """What was expected behind it is dropped, and asked for again."""
    reading = started()
    reading.expect(9, 1_000)
    reading.expect(20, 1_000)
    life = reading.life

    reading.add(answer(0, 5), 0)

    assert (reading.fetch_offset, reading.life) == (5, life + 1)
    assert take_all(reading) == list(range(5))
    assert reading.waiting_bytes == 0


def test_records_that_are_done_are_left_out_one_by_one() -> None:
    """Each record has the offset behind it as its end, also where others were left out."""
    reading = started(1, ranges=((3, 4),))
    reading.add(answer(0, 7, 1), 1)

    found = []
    while (record := reading.take_one()) is not None:
        found.append(record.offset)

    assert found == [1, 2, 5, 6]
    assert reading.progress is not None
    reading.progress.done([2])
    assert reading.progress.ranges_to_commit(9) == [(2, 2)]


@pytest.mark.parametrize("stable", [3, 6])
def test_records_that_the_group_has_passed_are_not_given(stable: int) -> None:
    """They wait here, and the answer to a commit says that all is done up to there."""
    reading = started()
    reading.add(answer(0, 5), 0)
    assert reading.progress is not None

    reading.progress.committed([], stable)
    reading.pass_to(stable + 1)

    assert take_all(reading) == list(range(stable + 1, 5))
    assert reading.fetch_offset == max(5, stable + 1)


def test_a_seek_drops_what_waits() -> None:
    """And what is still read, whose answer is of another life."""
    reading = started()
    reading.add(answer(0, 5), 0)
    reading.expect(9, 100)
    life = reading.life

    reading.seek(2)

    assert take_all(reading) == []
    assert (reading.fetch_offset, reading.waiting_bytes, reading.life) == (2, 0, life + 1)
