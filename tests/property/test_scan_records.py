"""proxy/scans/records.py: what is sent is what is read, and hostile bytes are only refused."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import ScansInvalid
from keylane.keyrange.hash import murmur2_hash
from keylane.keyrange.key_split import NO_OUTPUT, KeySplit, PartitionSplit, even_split
from keylane.keyrange.space import HASH_MAX, LANE_COUNT_MAX
from keylane.proxy.scans.records import (
    NO_RECORD,
    OFFSET_MAX,
    Cut,
    News,
    Packet,
    Scan,
    Sender,
    SplitBook,
    digest_of,
    is_published,
    read_packet,
    read_sender,
    write_packets,
)

SENDER = Sender(7, bytes(range(16)))
CUTS = (1000, 2**40, HASH_MAX)
splits = st.one_of(
    st.integers(1, 40).map(even_split),
    st.sets(st.integers(1, HASH_MAX), max_size=20).map(lambda cuts: KeySplit(tuple(sorted(cuts)))),
    st.just(KeySplit(CUTS, (0, NO_OUTPUT, 1, 0))),
)
epochs = st.integers(-1, 2**31 - 1)
topics = st.sampled_from(["orders", "payments", "größe"])


@st.composite
def scans(draw: st.DrawFn) -> Scan:
    """Any scan that a node could publish."""
    split = draw(splits)
    start = draw(st.integers(0, 2**40) | st.integers(0, OFFSET_MAX - 1))
    length = draw(st.integers(1, min(2**33, OFFSET_MAX - start)))
    rows = []
    for _ in range(split.output_count):
        if draw(st.booleans()):
            last = draw(st.integers(0, length - 1))
            count = draw(st.integers(1, last + 1))
            rows.append((start + last, count, draw(st.integers(0, 2**34))))
        else:
            rows.append((NO_RECORD, 0, draw(st.integers(0, 100))))
    bounds = sorted(draw(st.sets(st.integers(start, start + length - 1), max_size=8)))
    return Scan(
        topic=(name := draw(topics)),
        at=PartitionSplit(
            uuid.uuid5(uuid.NAMESPACE_DNS, name), draw(st.integers(0, 10_000)), split
        ),
        start=start,
        end=start + length,
        columns=np.array(rows, np.int64).T.copy(),
        holes=tuple(zip(bounds[::2], bounds[1::2], strict=False)),
        log_start_offset=draw(st.integers(-1, OFFSET_MAX)),
        leader_epoch=draw(epochs),
    )


cuts = st.builds(
    Cut, st.tuples(st.uuids(), st.integers(0, 2**31 - 1)), st.integers(0, OFFSET_MAX), epochs
)
news = st.lists(scans() | cuts, max_size=6)


def fields(item: News) -> Any:
    """What two items must have in common to be equal."""
    if isinstance(item, Cut):
        return item
    return (
        item.topic, item.at, item.start, item.end,
        item.columns.tolist(), item.holes, item.log_start_offset, item.leader_epoch,
    )  # fmt: skip


def read_all(packets: list[bytes], book: SplitBook) -> list[Packet]:
    found = [read_packet(packet, book) for packet in packets]
    return [packet for packet in found if packet is not None]


@given(reported=news)
def test_what_is_read_is_what_was_sent(reported: list[News]) -> None:
    """Scans and cuts, in order, whatever the split; and the sender is seen without a full look."""
    packets = list(write_packets(SENDER, reported, lambda _: False))

    found = read_all(packets, SplitBook())

    assert [fields(item) for packet in found for item in packet.news] == list(map(fields, reported))
    assert all(packet.sender == SENDER for packet in found)
    assert all(read_sender(packet) == SENDER for packet in packets)


@given(partitions=st.integers(1, 2**31 - 1), lanes=st.integers(1, LANE_COUNT_MAX))
def test_lanes_by_murmur2_are_read_as_they_were_sent(partitions: int, lanes: int) -> None:
    """They are published by their counts alone, and are no lanes by XXH64."""
    split = even_split(lanes, murmur2_hash(partitions, lanes))
    scan = Scan(
        topic="orders",
        at=PartitionSplit(uuid.UUID(int=7), 0, split),
        start=0,
        end=9,
        columns=np.array([(NO_RECORD, 0, 0)] * lanes, np.int64).T.copy(),
        holes=(),
        log_start_offset=0,
        leader_epoch=1,
    )
    (packet,) = write_packets(SENDER, [scan], lambda _: False)

    (found,) = read_all([packet], SplitBook())

    assert is_published(split)
    assert [fields(item) for item in found.news] == [fields(scan)]
    (read,) = found.news
    assert isinstance(read, Scan)
    assert read.at.key_split != even_split(lanes)


def test_free_cuts_by_murmur2_are_not_published() -> None:
    """A node reads by them for itself, of a group whose name it does not know."""
    split = KeySplit((1000,), key_hash=murmur2_hash(3, 4))

    assert not is_published(split)
    assert digest_of(split) != digest_of(KeySplit((1000,)))


@given(first=scans(), second=scans())
def test_a_split_that_was_sent_is_named_by_its_digest(first: Scan, second: Scan) -> None:
    """A reader of the first packet can read the second; any other skips its scans."""
    second.at, second.columns = second.at._replace(key_split=first.at.key_split), first.columns
    second.start, second.end, second.holes = first.start, first.end, ()
    (whole,) = write_packets(SENDER, [first], lambda _: False)
    (short,) = write_packets(SENDER, [second], lambda _: True)
    book = SplitBook()

    read_all([whole], book)
    (known,) = read_all([short], book)
    (unknown,) = read_all([short], SplitBook())

    assert [fields(item) for item in known.news] == [fields(second)]
    is_even = first.at.key_split == even_split(len(first.at.key_split.cuts) + 1)
    assert len(unknown.news) == is_even


@given(reported=news.filter(bool), data=st.data())
def test_damaged_packets_are_refused_or_read_as_something_that_could_be(
    reported: list[News], data: st.DataObject
) -> None:
    """Bytes changed, cut off or put behind: no other error, and no scan that contradicts itself."""
    packet = bytearray(next(write_packets(SENDER, reported, lambda _: False)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(packet) - 1))
        packet[place] = data.draw(st.integers(0, 255))
    packet = packet[: data.draw(st.integers(0, len(packet)))] + data.draw(st.binary(max_size=3))

    check_read(bytes(packet))


@given(data=st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    """Behind a head that is in order, too."""
    check_read(data)
    check_read(b"\0\0" + bytes(20) + data)


def check_read(data: bytes) -> None:
    try:
        packet = read_packet(data, SplitBook())
    except ScansInvalid:
        return
    for item in packet.news if packet is not None else ():
        if isinstance(item, Cut):
            assert item.end >= 0 and item.place[1] >= 0
            continue
        assert 0 <= item.start < item.end <= OFFSET_MAX and item.at.partition >= 0
        lasts, counts, sizes = item.columns.tolist()
        assert len(lasts) == item.at.key_split.output_count
        for last, count, size in zip(lasts, counts, sizes, strict=True):
            assert size >= 0 and count >= 0
            assert item.start + count - 1 <= last < item.end if count else last == NO_RECORD
        assert all(item.start <= low <= high < item.end for low, high in item.holes)
