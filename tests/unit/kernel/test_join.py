"""Joining small batches, by example: what shares a lane batch, and what stays by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from keylane.kernel.block import LaneSlice
from keylane.kernel.join import JOIN_BATCH_BYTES_MAX, JOINED_BYTES_MAX
from keylane.kernel.split import split_block
from keylane.keyrange.lane import LaneLayout
from tests.reference import kernel as reference
from tests.reference.batches import CODEC_FORMS, Batch, Record, control_batch, write_batch

LANE_SPLIT = LaneLayout(1, 1).key_split(0)
BYTES_MAX = 1 << 24
FIRST = Batch(100, (Record(0, b"a", b"1"),), producer_id=7, producer_epoch=2, base_sequence=40)
SECOND = replace(FIRST, base_offset=101, base_sequence=41)


def split_lane(*batches: Batch) -> LaneSlice:
    """The only lane of some batches; equal to the twin's."""
    wire = b"".join(map(write_batch, batches))
    reference.assert_same_answer(wire, LANE_SPLIT, BYTES_MAX, BYTES_MAX)
    block = split_block(wire, LANE_SPLIT, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    assert block is not None and block.outputs[0] is not None
    return block.outputs[0]


def stream(count: int, value: bytes, timestamp: int = 1_700_000_000_000) -> list[Batch]:
    """Batches of one record each; time goes on by a millisecond."""
    return [
        Batch(at, (Record(0, b"k", value),), base_timestamp=timestamp + at) for at in range(count)
    ]


@pytest.mark.parametrize("form", sorted(CODEC_FORMS))
def test_joined_records_keep_offset_timestamp_key_value_and_headers(form: str) -> None:
    """A client's own parser reads of the joined batch what was in the small ones."""
    batches = [
        Batch(
            1000 + 2 * number,
            (
                Record(0, b"key-%d" % number, b"v" * number, ((b"h", b"x"),), 5),
                Record(1, None, None, (), -number),
            ),
            form=form,
            base_timestamp=1_700_000_000_000 + 1_000_000 * number,
        )
        for number in range(90)
    ]

    found = split_lane(*batches)

    assert found.base_offsets.tolist() == [1000] and found.last_offsets.tolist() == [1179]
    parsed = DefaultRecordBatch(bytes(found.data))
    assert parsed.validate_crc()
    reported = [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in parsed]
    expected: list[tuple[Any, ...]] = []
    for n, b in enumerate(batches):
        at, time_ms = b.base_offset, b.base_timestamp
        expected.append((at, time_ms + 5, b"key-%d" % n, b"v" * n, [("h", b"x")]))
        expected.append((at + 1, time_ms - n, None, None, []))
    assert reported == expected


def test_what_a_producer_could_have_sent_as_one_batch_is_joined() -> None:
    """The sequence goes on, all else is equal."""
    assert split_lane(FIRST, SECOND).record_counts.tolist() == [2]


@pytest.mark.parametrize(
    "change",
    [
        {"base_sequence": 42},
        {"producer_id": 8},
        {"producer_epoch": 3},
        {"leader_epoch": 6},
        {"flags": 0x10},
        {"flags": 0x40},
        {"base_offset": 102},
        {"last_offset_delta": 1},
        {"base_timestamp": -1},
    ],
    ids=str,
)
def test_what_differs_stays_by_itself(change: dict[str, Any]) -> None:
    """Another producer state, epoch, kind, a hole, no timestamp: two batches."""
    found = split_lane(FIRST, replace(SECOND, **change))

    assert found.record_counts[found.record_counts > 0].tolist() == [1, 1]


def test_transactions_end_where_their_marker_is() -> None:
    """Batches of a transaction are joined, those beyond a control batch are not."""
    first, second = FIRST.with_flags(0x10), SECOND.with_flags(0x10)
    marker = control_batch(102, 7, commit=True, epoch=2)
    third = replace(second, base_offset=103, base_sequence=42)

    assert split_lane(first, second, marker, third).record_counts.tolist() == [2, 0, 1]


def test_append_times_are_kept() -> None:
    """Where the header's time is every record's, only equal times are joined."""
    batches = [
        replace(b, flags=0x08, max_timestamp=at)
        for b, at in zip(stream(4, b"v"), (9, 9, 10, 10), strict=True)
    ]

    assert split_lane(*batches).record_counts.tolist() == [2, 2]


def test_large_batches_are_left_as_they_are() -> None:
    """A batch of more than `JOIN_BATCH_BYTES_MAX` costs a copy and gains nothing."""
    found = split_lane(*stream(3, b"v" * JOIN_BATCH_BYTES_MAX))

    assert found.record_counts.tolist() == [1, 1, 1]


def test_joined_batches_are_bounded() -> None:
    """A client that asks for little is not sent a batch of megabytes."""
    found = split_lane(*stream(500, b"v" * 1000))

    sizes = [int(end) for end in found.ends]
    assert 4 <= len(sizes) <= 6
    assert max(b - a for a, b in zip([0, *sizes], sizes, strict=False)) < 1.1 * JOINED_BYTES_MAX


def test_growing_deltas_are_written_in_full() -> None:
    """Times decades apart and thousands of records need longer varints than the source had."""
    late = stream(2, b"v", timestamp=0)
    late[1] = replace(late[1], base_timestamp=2**47 - 1)

    assert split_lane(*late).record_counts.tolist() == [2]
    assert split_lane(*stream(9000, b"")).record_counts.sum() == 9000


def test_a_timestamp_out_of_range_keeps_the_block_as_it_is() -> None:
    """Arithmetic that could wrap is not done: each batch goes out unjoined."""
    odd = Batch(2, (Record(0, b"k", b"v", (), 2**62),), base_timestamp=1)

    found = split_lane(*stream(2, b"v"), odd)

    assert found.record_counts.tolist() == [1, 1, 1]
