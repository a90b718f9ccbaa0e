"""Frames as they are received: cut anywhere, small ones together, large ones in parts."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keylane.client.connection import SCRATCH_BYTES, _Frames

SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(SCRATCH_BYTES // 2 - 9, SCRATCH_BYTES // 2 + 9),
    st.integers(SCRATCH_BYTES - 9, SCRATCH_BYTES + 9),
    st.integers(0, 3 * SCRATCH_BYTES),
)


class Link:
    """Keeps the frames that it is given."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.objects: list[object] = []
        self.closed: list[Any] = []

    def take_frame(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self.objects.append(frame.obj)

    def close(self, reason: object, exc: object = None) -> None:
        self.closed.append(reason)


def receive(frames: _Frames, data: bytes, chunk: int) -> None:
    """Hand bytes over as a transport does."""
    while data:
        room = frames.get_buffer(-1)
        assert len(room) > 0
        size = min(len(room), len(data), chunk)
        room[:size] = data[:size]
        frames.buffer_updated(size)
        data = data[size:]


@given(sizes=st.lists(SIZES, max_size=6), chunk=st.sampled_from([1 << 20, 70_000, 4_097, 1_009]))
def test_every_frame_comes_whole_and_in_order(sizes: list[int], chunk: int) -> None:
    """Whatever the sizes, and however the stream is cut."""
    link = Link()
    loop = asyncio.new_event_loop()
    frames = _Frames(link, loop.create_future())  # type: ignore[arg-type]
    loop.close()
    sent = [bytes([number % 251]) * size for number, size in enumerate(sizes, 1)]

    receive(frames, b"".join(len(each).to_bytes(4, "big") + each for each in sent), chunk)

    assert link.frames == sent
    assert not link.closed


def test_a_large_frame_is_received_into_the_bytes_that_it_is() -> None:
    """Records are slices of them: neither bytes from elsewhere nor a copy is made."""
    link = Link()
    loop = asyncio.new_event_loop()
    frames = _Frames(link, loop.create_future())  # type: ignore[arg-type]
    loop.close()
    size = 3 * SCRATCH_BYTES
    receive(frames, size.to_bytes(4, "big") + b"a" * (size - 1), 1 << 20)
    filled = frames._frame

    with memoryview(b"a") as last:
        frames.get_buffer(-1)[:1] = last
        frames.buffer_updated(1)

    (data,) = link.objects
    assert isinstance(data, bytes)
    assert filled.getvalue() is data


def test_a_view_that_is_held_on_to_costs_a_copy() -> None:
    """Loops other than asyncio's may keep one while they say what was received."""
    link = Link()
    loop = asyncio.new_event_loop()
    frames = _Frames(link, loop.create_future())  # type: ignore[arg-type]
    loop.close()
    size = 3 * SCRATCH_BYTES
    receive(frames, size.to_bytes(4, "big") + b"a" * (size - 1), 1 << 20)

    with memoryview(frames.get_buffer(-1)) as held:
        held[:1] = b"b"
        frames.buffer_updated(1)

    assert link.frames == [b"a" * (size - 1) + b"b"]


def test_a_size_that_none_can_have_closes_the_connection() -> None:
    """Negative as Kafka reads it: nothing behind it can be understood."""
    link = Link()
    loop = asyncio.new_event_loop()
    frames = _Frames(link, loop.create_future())  # type: ignore[arg-type]
    loop.close()

    receive(frames, b"\xff\xff\xff\xff", 100)

    assert len(link.closed) == 1
