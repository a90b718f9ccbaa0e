"""A byte stream becomes frames: small, large, in pieces; nonsense is refused at once."""

from __future__ import annotations

import struct
from itertools import chain

import pytest

from keylane.errors import FrameInvalid
from keylane.proxy.net.framing import CHUNK_BYTES, FrameReader

BOUND = 1024 * 1024


def frame(size_bytes: int, fill: int = 7) -> bytes:
    return struct.pack(">i", size_bytes) + bytes([fill]) * size_bytes


def feed(reader: FrameReader, data: bytes, chunk_bytes: int = 1 << 30) -> list[bytes]:
    """Write `data` into the reader's own buffers, as asyncio does."""
    frames: list[bytes] = []
    view = memoryview(data)
    while view:
        free = reader.free()
        assert free, "there is always room"
        count = min(len(free), len(view), chunk_bytes)
        free[:count] = view[:count]
        view = view[count:]
        frames += map(bytes, reader.received(count))
    return frames


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(
    "size_bytes",
    [4, 5, CHUNK_BYTES - 5, CHUNK_BYTES - 4, CHUNK_BYTES - 3, CHUNK_BYTES, 3 * CHUNK_BYTES, BOUND],
)
def test_frames_around_the_chunk_size(size_bytes, eager) -> None:
    """A frame that just fits, or just not, comes out whole with its neighbours."""
    reader = FrameReader(frame_bytes_max=BOUND, eager=eager)
    sent = [frame(10, 1), frame(size_bytes, 2), frame(4, 3)]

    frames = feed(reader, b"".join(sent))

    assert frames == sent
    assert not reader.is_partial and reader.wanted_bytes == 0


def test_single_bytes() -> None:
    """The worst that a peer can do; the frame is there with its last byte."""
    reader = FrameReader(frame_bytes_max=BOUND, eager=False)
    sent = frame(20) + frame(4)

    frames = [feed(reader, sent[position : position + 1]) for position in range(len(sent))]

    assert [number for number, found in enumerate(frames) if found] == [23, 31]
    assert list(chain.from_iterable(frames)) == [sent[:24], sent[24:]]


@pytest.mark.parametrize("size_bytes", [-1, -(2**31), 0, 3, BOUND + 1, 2**31 - 1, 0x47455420])
def test_a_size_out_of_bounds_is_refused_at_once(size_bytes) -> None:
    """Negative, too small for a header, too large, and `GET ` of a lost HTTP client."""
    reader = FrameReader(frame_bytes_max=BOUND, eager=False)

    with pytest.raises(FrameInvalid, match=str(size_bytes)):
        feed(reader, struct.pack(">i", size_bytes))


def test_a_bad_size_behind_a_good_frame_is_refused() -> None:
    """The good frame is lost with the connection, which is closed."""
    reader = FrameReader(frame_bytes_max=BOUND, eager=False)

    with pytest.raises(FrameInvalid):
        feed(reader, frame(8) + struct.pack(">i", -5))


def test_a_lying_size_takes_no_memory() -> None:
    """100 MiB announced, 1 KiB sent: the buffer stays within two chunks."""
    reader = FrameReader(frame_bytes_max=100 * 1024**2, eager=False)

    feed(reader, struct.pack(">i", 100 * 1024**2) + bytes(1024))

    assert reader.wanted_bytes == 100 * 1024**2 + 4
    assert len(reader.free()) <= 2 * CHUNK_BYTES
    assert reader.is_partial


def test_a_growing_buffer_holds_at_most_twice_what_came() -> None:
    """A large frame that really comes grows its buffer by doubling, to its own size at most."""
    reader = FrameReader(frame_bytes_max=BOUND, eager=False)
    sent, received = frame(BOUND - 100), 0

    for position in range(0, len(sent), 10_000):
        piece = sent[position : position + 10_000]
        frames = feed(reader, piece)
        received += len(piece)
        held = 0 if frames else received + len(reader.free())
        assert held <= max(2 * CHUNK_BYTES, 2 * received)

    assert frames == [sent]


def test_an_eager_reader_allocates_once() -> None:
    """A broker's word is good: the rest of a large frame fits in one read."""
    reader = FrameReader(frame_bytes_max=BOUND, eager=True)

    feed(reader, frame(BOUND)[: CHUNK_BYTES + 1])

    assert len(reader.free()) == BOUND + 4 - CHUNK_BYTES - 1


def test_partial_says_whether_a_frame_has_begun() -> None:
    """It is what the time-out of slow requests looks at."""
    reader = FrameReader(frame_bytes_max=BOUND, eager=False)

    seen = [reader.is_partial]
    feed(reader, frame(8)[:1])
    seen.append(reader.is_partial)
    feed(reader, frame(8)[1:])
    seen.append(reader.is_partial)

    assert seen == [False, True, False]


def test_readers_of_a_thread_take_turns_in_one_chunk() -> None:
    """Bytes that two connections have begun are theirs, whichever receives in between."""
    readers = [FrameReader(frame_bytes_max=BOUND, eager=False) for _ in range(2)]
    sent = [frame(300, 1), frame(CHUNK_BYTES - 4, 2)]
    found: list[list[bytes]] = [[], []]

    for position in range(0, CHUNK_BYTES, 1000):
        for reader, stream, frames in zip(readers, sent, found, strict=True):
            frames += feed(reader, stream[position : position + 1000])

    assert found == [[sent[0]], [sent[1]]]
