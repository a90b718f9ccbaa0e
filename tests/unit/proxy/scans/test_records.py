"""proxy/scans/records.py: sizes, bounds, other versions, and what is said of damage."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

from keylane.errors import ScansInvalid
from keylane.keyrange.key_split import NO_OUTPUT, KeySplit, PartitionSplit, even_split
from keylane.proxy.scans import records as module
from keylane.proxy.scans.records import (
    HEAD,
    NO_RECORD,
    OUTPUTS_PACKET,
    SCAN_HEAD,
    Cut,
    Scan,
    Sender,
    SplitBook,
    digest_of,
    is_published,
    read_packet,
    read_sender,
    write_packets,
)

SENDER = Sender(3, b"l" * 16)
TOPIC_ID = uuid.UUID(int=9)
UNEVEN = KeySplit((100, 200))


def scan(split: KeySplit, start: int = 10_000_000, *, holes: int = 0, records: int = 30) -> Scan:
    """A block of a thousand offsets, all lanes alike; some 100 bytes per record."""
    row = [start + 999, records, 100 * records]
    return Scan(
        topic="orders",
        at=PartitionSplit(TOPIC_ID, 5, split),
        start=start,
        end=start + 1000 + 2 * holes,
        columns=np.array([row] * split.output_count, np.int64).T.copy(),
        holes=tuple((start + 1000 + 2 * at,) * 2 for at in range(holes)),
        log_start_offset=0,
        leader_epoch=4,
    )


def test_a_block_of_sixteen_lanes_takes_less_than_two_hundred_bytes() -> None:
    """And a packet around it less than 70."""
    (packet,) = write_packets(SENDER, [scan(even_split(16))], lambda _: False)
    (two,) = write_packets(SENDER, [scan(even_split(16))] * 2, lambda _: False)

    assert len(two) - len(packet) < 200
    assert len(packet) - (len(two) - len(packet)) < 70


def test_long_news_become_packets_that_a_broker_takes() -> None:
    """By bytes, by outputs, and of the highest holes only; no item is lost or out of order."""
    many = [scan(even_split(1024), start) for start in range(0, 100_000, 1000)]
    packets = list(write_packets(SENDER, many, lambda _: False))
    book = SplitBook()

    found = [read_packet(packet, book) for packet in packets]

    starts = [
        item.start for packet in found if packet for item in packet.news if isinstance(item, Scan)
    ]
    assert starts == [item.start for item in many]
    assert len(packets) > 1 and max(map(len, packets)) < 512 * 1024

    (packet,) = write_packets(SENDER, [scan(UNEVEN, holes=5000)], lambda _: False)
    read = read_packet(packet, book)
    assert read is not None and isinstance(read.news[0], Scan)
    assert read.news[0].holes == scan(UNEVEN, holes=5000).holes[-4096:]


def test_the_largest_split_that_is_published_fits_into_a_packet() -> None:
    """A larger one is not published at all."""
    cuts, outputs = module.INTERVALS_PUBLISHED_MAX - 1, module.OUTPUTS_PUBLISHED_MAX
    dealt = (*range(outputs), *([NO_OUTPUT, 0] * outputs))[: cuts + 1]
    large = KeySplit(tuple(range(1, cuts + 1)), dealt)
    reported = scan(large, records=1)
    reported.columns[2] = 2**40
    assert is_published(large)

    (packet,) = write_packets(SENDER, [reported], lambda _: False)

    assert len(packet) < 768 * 1024
    read = read_packet(packet, SplitBook())
    assert read is not None and read.news[0].at.key_split == large  # type: ignore[union-attr]
    assert not is_published(KeySplit((*large.cuts, cuts + 1), (*dealt, NO_OUTPUT)))
    assert not is_published(even_split(outputs + 1))


def test_the_book_keeps_one_object_per_split_and_forgets_the_longest_unused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers and scans are kept by it."""
    monkeypatch.setattr(module, "SPLITS_KNOWN_MAX", 2)
    book = SplitBook()
    first = book.learn(KeySplit((1,)))
    assert book.learn(KeySplit((1,))) is first

    book.learn(KeySplit((2,)))
    assert book.use(digest_of(first)) is first
    book.learn(KeySplit((3,)))

    assert book.use(digest_of(KeySplit((2,)))) is None
    assert book.use(digest_of(KeySplit((1,)))) is first
    assert digest_of(KeySplit((1,), (0, NO_OUTPUT))) != digest_of(KeySplit((1,), (NO_OUTPUT, 0)))


def test_a_packet_of_another_version_is_left_alone() -> None:
    """Whatever follows its head."""
    data = HEAD.pack(1, 3, b"l" * 16) + b"whatever"

    assert read_sender(data) is None
    assert read_packet(data, SplitBook()) is None


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (22, b"\0\1", "65537 items"),
        (26, b"\7", "split of kind 7"),
        (27, b"\0\0\x40\0", "16384 cuts"),
        (31, b"\xff", "ascend"),
        (47, b"\7", "flag 7"),
    ],
)
def test_what_is_wrong_is_reported(place: int, value: bytes, reason: str) -> None:
    """The text names the fault."""
    (packet,) = write_packets(SENDER, [scan(UNEVEN)], lambda _: False)
    damaged = packet[:place] + value + packet[place + len(value) :]

    with pytest.raises(ScansInvalid, match=reason):
        read_packet(damaged, SplitBook())


def test_records_outside_of_their_scan_are_refused() -> None:
    """A last record behind the end, more records than offsets, a hole outside; a cut below 0."""
    for row, value in ((0, 10_001_000), (1, 1001), (1, 0)):
        wrong = scan(UNEVEN)
        wrong.columns[row, 1] = value
        refused(wrong)
    wrong = scan(UNEVEN)
    wrong.holes = ((10_000_990, 10_001_000),)
    refused(wrong)
    wrong = scan(UNEVEN)
    wrong.columns[:, 0] = [NO_RECORD, 5, 0]
    refused(wrong)
    refused(Cut((TOPIC_ID, 5), -1, 0))
    refused(Cut((TOPIC_ID, 5), 1, -2))


def refused(item: Scan | Cut) -> None:
    (packet,) = write_packets(SENDER, [item], lambda _: False)
    with pytest.raises(ScansInvalid):
        read_packet(packet, SplitBook())


def test_few_bytes_cannot_ask_for_much_memory() -> None:
    """Columns of zeros take a byte each; their number is bounded over the whole packet."""
    empty = scan(even_split(1024), records=1)
    empty.columns[:] = np.array([[NO_RECORD], [0], [0]])
    count = OUTPUTS_PACKET // 1024 + 2
    packets = list(write_packets(SENDER, [empty] * count, lambda _: False))
    assert len(packets) == 2
    item_bytes = 4 + SCAN_HEAD.size + 3 + 4
    head, tail = packets[0][:-item_bytes], packets[0][-item_bytes:]
    items = (len(packets[0]) - len(packets[1])) // item_bytes + 1
    start = packets[0].index(items.to_bytes(4, "big") + tail[:4])
    swollen = head[:start] + (items + 9).to_bytes(4, "big") + head[start + 4 :] + tail * 10

    with pytest.raises(ScansInvalid, match="outputs"):
        read_packet(swollen, SplitBook())
