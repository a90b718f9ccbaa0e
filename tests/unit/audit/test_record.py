"""keylane/audit/record.py: what a member reports, and to which audit partition."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keylane.audit.record import ReportBook, audit_partition, lane_places
from keylane.keyrange.hash import key_hash, offset_hash
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX


def make_book(*, partitions: int = 2, lanes: int = 4, audit: int = 3) -> ReportBook:
    place_of = lane_places(LaneLayout(partition_count=partitions, lane_count=lanes))
    return ReportBook(member='m"1', place_of=place_of, audit_partition_count=audit)


def read(value: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(value)
    return document


def test_a_record_names_its_physical_partition_and_its_lanes_range() -> None:
    """Lane index 5 of 2 partitions is lane 2 of partition 1; the hash is the key's."""
    book = make_book()
    book.assigned([5], now_us=1, generation=7)

    message = book.processed(5, 42, b"key", now_us=9)

    reported = read(message.value)
    hashed = key_hash(b"key")
    assert (reported["p"], reported["o"], reported["h"]) == (1, 42, str(hashed))
    assert int(reported["lo"]) == 2 * HASH_MAX // 4
    assert (reported["m"], reported["g"], reported["s"], reported["t"]) == ('m"1', 7, 1, 9)
    assert message.key == b"1:%d" % hashed
    assert message.partition == audit_partition(1, hashed, 3)


def test_a_record_without_a_key_hashes_its_offset() -> None:
    """As the proxy does, so that the record is in the lane that it came from."""
    message = make_book().processed(0, 42, None, now_us=0)

    assert read(message.value)["h"] == str(offset_hash(42))


def test_an_assignment_goes_to_every_audit_partition_and_starts_a_session() -> None:
    """Kept lanes keep their session: only what was assigned anew has the next number."""
    book = make_book()
    first = book.assigned([1, 0], now_us=1, generation=3)
    book.assigned([2], now_us=2, generation=4)

    sessions = [read(book.processed(lane, 0, b"k", now_us=3).value)["s"] for lane in (0, 2, 3)]

    assert [message.partition for message in first] == [0, 1, 2]
    assert [row[0] for row in read(first[0].value)["l"]] == [0, 1]
    assert read(first[0].value)["g"] == 3
    assert sessions == [1, 2, 0]
    assert book.assigned([], now_us=5) == []


def test_a_commit_names_ranges_and_positions() -> None:
    """One message per audit partition, a row per lane."""
    messages = make_book(lanes=1).committed({1: 10, 0: 20}, now_us=1)

    assert len(messages) == 3
    assert read(messages[2].value)["l"] == [
        [0, "0", str(HASH_MAX), 20],
        [1, "0", str(HASH_MAX), 10],
    ]
    assert make_book().committed({}, now_us=1) == []


def test_a_lane_that_cannot_be_is_refused() -> None:
    """A wrong lane count would put records into wrong ranges without a word."""
    with pytest.raises(ValueError, match="no lane 8 of 8"):
        make_book().processed(8, 0, b"k", now_us=0)
    with pytest.raises(ValueError, match="at least one partition"):
        make_book(audit=0)
