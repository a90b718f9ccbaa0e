"""A hand-over of a partition: the records that it names, and its bytes, which are checked."""

from __future__ import annotations

import struct
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import ScansInvalid
from keylane.share.handover import (
    RANGE,
    WAIT_MS_MAX,
    HandOver,
    HeldRange,
    NotedPlace,
    Thanks,
    held_ranges,
    is_note,
    read_note,
    wait_ms_of,
    write_note,
)
from keylane.share.states import GONE
from keylane.wire.share import RELEASE, AckBatch
from tests.unit.share.by_hand import A, B, Partition

AT = NotedPlace(number=1, group="billing", topic="orders", topic_id=uuid.UUID(int=7), partition=3)
OFFER = HandOver(
    at=AT, leader_epoch=4, session_epoch=77, end_offset=20, quiet_ms=0,
    ranges=(HeldRange(3, 9, 1), HeldRange(12, 12, 2, 500)),
)  # fmt: skip


@st.composite
def offers(draw: st.DrawFn) -> HandOver:
    """Offers that a node may write."""
    found: list[HeldRange] = []
    for gap, length in draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 99)))):
        first = found[-1].last + 1 + gap if found else gap
        count, wait_ms = draw(st.integers(1, 10)), draw(st.integers(0, WAIT_MS_MAX))
        found.append(HeldRange(first, first + length - 1, count, wait_ms))
    return replace(
        OFFER,
        at=replace(AT, group=draw(st.text(max_size=20)), number=draw(st.integers(0, 999))),
        end_offset=(found[-1].last if found else 0) + draw(st.integers(0, 5)),
        quiet_ms=draw(st.integers(0, WAIT_MS_MAX)),
        ranges=tuple(found),
    )


@given(offer=offers())
def test_a_note_is_read_as_it_was_written(offer: HandOver) -> None:
    """Offers and thanks."""
    for note in (offer, Thanks(offer.at)):
        data = write_note(note)

        assert is_note(data)
        assert read_note(data) == note


@given(offer=offers(), cut=st.integers(1, 40))
def test_a_note_that_is_cut_or_longer_is_refused(offer: HandOver, cut: int) -> None:
    """It is not read in part."""
    data = write_note(offer)
    for bad in (data[: -min(cut, len(data) - 2)], data + bytes(cut)):
        with pytest.raises(ScansInvalid):
            read_note(bad)


@pytest.mark.parametrize(
    ("first", "length", "count", "wait_ms"),
    [
        (8, 1, 1, 0),  # it overlaps the one before
        (-1, 1, 1, 0),
        (12, 0, 1, 0),
        (12, 10, 1, 0),  # beyond the end
        (12, -1, 1, 0),
        (12, 1, 0, 0),
        (12, 1, 1, -1),
        (12, 1, 1, WAIT_MS_MAX + 1),
    ],
)
def test_a_range_that_cannot_be_is_refused(
    first: int, length: int, count: int, wait_ms: int
) -> None:
    """The next owner would hold what no node has held."""
    data = write_note(OFFER)[: -RANGE.size] + RANGE.pack(first, length, count, wait_ms)

    with pytest.raises(ScansInvalid):
        read_note(data)


@pytest.mark.parametrize(
    "bad",
    [
        replace(OFFER, session_epoch=0),
        replace(OFFER, end_offset=-1),
        replace(OFFER, quiet_ms=-1),
        replace(OFFER, at=replace(AT, partition=-1)),
        replace(OFFER, end_offset=2**20, ranges=(HeldRange(0, 2**20, 1),)),  # too many
    ],
)
def test_an_offer_that_cannot_be_is_refused(bad: HandOver) -> None:
    """A session's first epoch is 1; bounds are checked before anything is made of them."""
    with pytest.raises(ScansInvalid):
        read_note(write_note(bad))


def test_a_packet_of_scans_is_no_note() -> None:
    """Its version is 0."""
    assert not is_note(struct.pack(">hi16s", 0, 1, b"x" * 16))
    assert not is_note(b"")


def test_what_is_locked_is_named_with_its_deliveries_and_waits() -> None:
    """Neighbours that are alike are one range; what comes again is left out."""
    part = Partition([A, A, B, A])
    part.points += [B, B]
    part.acquire(4, 5, count=2)
    part.dispatcher.lose([AckBatch(2, 2, b"")], part.now_s)
    part.dispatcher.delay(5, 5, part.now_s + 0.4991, part.now_s)

    ranges = held_ranges(part.dispatcher, part.now_s)

    assert ranges == ((0, 1, 1, 0), (3, 3, 1, 0), (4, 4, 2, 0), (5, 5, 2, 500))


def test_nothing_is_named_while_a_member_has_a_record_or_an_outcome_is_under_way() -> None:
    """The broker has to have confirmed them before."""
    part = Partition([A, A])
    part.take()
    found = [held_ranges(part.dispatcher, part.now_s)]
    part.say(RELEASE, 0)
    found.append(held_ranges(part.dispatcher, part.now_s))

    part.confirm()

    assert found == [None, None]
    assert part.dispatcher.records[0].state == GONE
    assert held_ranges(part.dispatcher, part.now_s) == ((1, 1, 1, 0),)


def test_a_record_whose_letter_is_being_written_is_held() -> None:
    """The next owner writes it."""
    part = Partition([A], copies_rejected=True)
    part.dispatcher.last_delivery = 1
    part.take()
    part.say(RELEASE, 0)

    assert held_ranges(part.dispatcher, part.now_s) == ((0, 0, 1, 0),)


@pytest.mark.parametrize(
    ("seconds", "wait_ms"), [(-5.0, 0), (0.0, 0), (0.0001, 1), (2.0, 2000), (1e9, WAIT_MS_MAX)]
)
def test_a_wait_is_rounded_up(seconds: float, wait_ms: int) -> None:
    """A record is not handed out before its time."""
    assert wait_ms_of(seconds) == wait_ms
