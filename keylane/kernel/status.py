"""Status codes of kernels with their texts, and the columns of the tables they share."""

from __future__ import annotations

from typing import Final

OK: Final = 0
MAGIC_OLD: Final = 1
MAGIC_UNKNOWN: Final = 2
BATCH_LENGTH: Final = 3
BATCH_TOO_LARGE: Final = 4
CRC_MISMATCH: Final = 5
CODEC_UNKNOWN: Final = 6
OFFSETS_INVALID: Final = 7
RECORD_COUNT: Final = 8
VARINT: Final = 9
RECORD_LENGTH: Final = 10
OFFSET_DELTA: Final = 11
FIELD_LENGTH: Final = 12
HEADER_COUNT: Final = 13
RECORDS_REMAIN: Final = 14
CONTROL_KEY: Final = 15

REASONS: Final = {
    MAGIC_OLD: "magic is 0 or 1, expected 2",
    MAGIC_UNKNOWN: "unknown magic, expected 2",
    BATCH_LENGTH: "batch_length is too small for a header",
    BATCH_TOO_LARGE: "batch is larger than the bound",
    CRC_MISMATCH: "CRC does not match",
    CODEC_UNKNOWN: "unknown compression codec",
    OFFSETS_INVALID: "offsets are negative or not above those of the batch before",
    RECORD_COUNT: "record count is negative or larger than the batch can hold",
    VARINT: "a varint is cut off, too long, or out of range",
    RECORD_LENGTH: "a record is longer than its batch, or its fields do not fill it",
    OFFSET_DELTA: "an offset delta is not above the one before, or beyond the last one",
    FIELD_LENGTH: "a key, value or header is longer than its record",
    HEADER_COUNT: "a header count is negative or larger than the record can hold",
    RECORDS_REMAIN: "bytes remain after the last record",
    CONTROL_KEY: "the key of a control record is too short",
}
UNSUPPORTED: Final = frozenset({MAGIC_OLD, BATCH_TOO_LARGE})
"""The batch may be intact, but keylane cannot split it."""

OFFSET_LIMIT: Final = 2**63 - 2**32
"""No batch may begin here or above, so that adding a delta never wraps."""
RECORD_BYTES_MIN: Final = 7
"""Length, attributes, timestamp delta, offset delta, key, value and header count: a byte each."""

# Columns of the batch table, int64, one row per source batch.
ADDRESS: Final = 0
"""Address of the batch in the wire buffer."""
SIZE: Final = 1
"""Whole batch on the wire, bytes."""
PAYLOAD: Final = 2
"""Address of the plain records: in the wire buffer, or of a decompressed copy."""
PAYLOAD_SIZE: Final = 3
BASE_OFFSET: Final = 4
LAST_OFFSET: Final = 5
ATTRIBUTES: Final = 6
RECORD_COUNT_COLUMN: Final = 7
PRODUCER_ID: Final = 8
ENTRY_END: Final = 9
"""Exclusive end of the batch's rows in the entry table; filled by the walk."""
BATCH_COLUMNS: Final = 10

CURSOR_SIZE: Final = 5
"""Elements of the walk's scratch."""
NONE_MISPLACED: Final = -1
"""In the scratch: no record was found yet whose key belongs into another partition."""
NOT_PLACED: Final = -2
"""In the scratch: no such record is looked for, as the partition is not known."""
NO_PARTITION: Final = -1
"""In the place of a partition's number: it is not known."""

# Elements of the hashing of keys, uint64; no element at all for XXH64.
HASHING_PARTITIONS: Final = 0
"""Partitions of the topic."""
HASHING_ODD_LANES: Final = 1
HASHING_WIDTH: Final = 2
HASHING_STEP: Final = 3
HASHING_REMAINDER: Final = 4
"""`KeyHash.widths`."""
HASHING_PARTITION: Final = 5
"""The partition that is split."""
HASHING_SIZE: Final = 6

# Columns of the entry table, int64, one row per (batch, lane with records in it).
ENTRY_LANE: Final = 0
ENTRY_RECORDS: Final = 1
ENTRY_BYTES: Final = 2
ENTRY_LAST_OFFSET: Final = 3
ENTRY_COLUMNS: Final = 4

# Columns of the lane table, int64, one row per lane.
LANE_NEXT_BATCH: Final = 0
"""First source batch that the lane's output does not cover yet."""
LANE_BYTES: Final = 1
"""Size of the output while planning, then the write position in it."""
LANE_BATCHES: Final = 2
"""Count of output batches while planning, then the next row of the metadata."""
LANE_RECORDS: Final = 3
LANE_ADDRESS: Final = 4
LANE_COLUMNS: Final = 5

# Rows of the metadata, int64, one column per output batch.
META_BASE_OFFSET: Final = 0
META_LAST_OFFSET: Final = 1
META_END: Final = 2
META_RECORDS: Final = 3
META_LAST_RECORD_OFFSET: Final = 4
META_PRODUCER_ID: Final = 5
META_ROWS: Final = 6

# Rows of the held batches, int64, one column per batch with data records.
HELD_POSITION: Final = 0
"""Position of its header; the records follow."""
HELD_BASE_OFFSET: Final = 1
HELD_BATCH_ROWS: Final = 2

# Rows of the held records, int64, one column per data record.
HELD_OFFSET: Final = 0
HELD_POINT: Final = 1
HELD_RECORD_ROWS: Final = 2
NO_POINT: Final = -1
"""In the place of a record's point: it has no key."""

# Rows of their spans, int32, one column per data record.
SPAN_END: Final = 0
"""End in the records of its batch, bytes."""
SPAN_SIZE: Final = 1
SPAN_BATCH: Final = 2
"""Column of its batch among the held ones."""
SPAN_ROWS: Final = 3

# Rows of the fields of records, one column per data record: int64, then places, int32.
FIELD_OFFSET: Final = 0
FIELD_TIMESTAMP: Final = 1
FIELD_LONG_ROWS: Final = 2
PLACE_KEY: Final = 0
"""First byte of the key in the buffer of its batch."""
PLACE_KEY_END: Final = 1
"""The byte behind it; NO_FIELD: the key is null. So it is with values; headers are never null."""
PLACE_VALUE: Final = 2
PLACE_VALUE_END: Final = 3
PLACE_HEADERS: Final = 4
"""First byte of the count of headers."""
PLACE_HEADERS_END: Final = 5
FIELD_PLACE_ROWS: Final = 6
NO_FIELD: Final = -1

# Elements of a survey, int64: what whole batches hold, by their headers.
FOUND_COMPRESSED_BYTES: Final = 0
FOUND_BATCHES: Final = 1
FOUND_RECORDS: Final = 2
FOUND_SIZE: Final = 3

# Elements of the progress array, int64: how far a kernel came, and why it stopped.
DONE_BATCHES: Final = 0
DONE_RECORDS: Final = 1
DONE_HOLES: Final = 2
DONE_MARKERS: Final = 3
COVERED_OFFSET: Final = 4
"""First offset that no hole and no record covers yet."""
STATUS: Final = 5
BAD_POSITION: Final = 6
"""Byte position in the wire buffer of the batch that STATUS is about."""
BAD_RECORD: Final = 7
"""Index in its batch of the record that STATUS is about, or -1."""
WIRE_BYTES: Final = 8
MISPLACED_OFFSET: Final = 9
"""Offset of the first record whose key belongs into another partition; below 0: none."""
PROGRESS_SIZE: Final = 10
COPY_SLACK_BYTES: Final = 32
"""`memory.copy_fast` may write this many bytes past the end; destinations are that much longer."""
