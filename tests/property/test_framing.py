"""Any chunking of any frames gives the same frames."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from keylane.proxy.net.framing import CHUNK_BYTES, FrameReader

SIZES = st.one_of(
    st.integers(4, 60),
    st.integers(CHUNK_BYTES - 8, CHUNK_BYTES + 8),
    st.integers(4, 4 * CHUNK_BYTES),
)
CHUNKS = st.one_of(st.integers(1, 9), st.integers(1, 3 * CHUNK_BYTES))


@given(
    sizes=st.lists(SIZES, max_size=8),
    chunks=st.lists(CHUNKS, min_size=1, max_size=12),
    eager=st.booleans(),
)
def test_any_chunking_gives_the_same_frames(sizes, chunks, eager) -> None:
    """Frames come out as they went in, byte for byte, each once and in order."""
    sent = [
        struct.pack(">i", size) + bytes([number + 1]) * size for number, size in enumerate(sizes)
    ]
    reader = FrameReader(frame_bytes_max=1 << 20, eager=eager)
    stream, position, turn = b"".join(sent), 0, 0
    frames: list[bytes] = []

    while position < len(stream):
        free = reader.free()
        # Small chunks only up to here: a megabyte in single bytes proves nothing more.
        wanted = chunks[turn] if turn < len(chunks) else CHUNK_BYTES // 3
        count = min(len(free), len(stream) - position, wanted)
        free[:count] = stream[position : position + count]
        frames += map(bytes, reader.received(count))
        position, turn = position + count, turn + 1

    assert frames == sent
    assert not reader.is_partial
