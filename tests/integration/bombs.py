"""Record batches of a few bytes that become hundreds of megabytes, put straight into a broker.

In:    a codec, plain sizes.  Out: batches; offsets that a broker gave them.
"""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cramjam
import google_crc32c
import lz4.frame
import zstandard

from keylane.config.node import split_address
from keylane.wire.header import write_request

MIB: Final = 1024**2
PRODUCE: Final = 0
VERSION: Final = 7
GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)


def one_record(size: int) -> Iterator[bytes]:
    """A record with the key `k` and a value of so many zeros, in pieces."""
    body = b"\0\0\0" + varint(1) + b"k" + varint(size)
    yield varint(len(body) + size + 1) + body
    for start in range(0, size, MIB):
        yield bytes(min(MIB, size - start))
    yield b"\0"


def many_records(count: int, value_bytes: int) -> Iterator[bytes]:
    """Records without keys whose values are zeros."""
    for delta in range(count):
        body = b"\0\0" + varint(delta) + varint(-1) + varint(value_bytes) + bytes(value_bytes)
        yield varint(len(body) + 1) + body + b"\0"


def make_batch(
    codec: int, pieces: Iterator[bytes], count: int = 1, declares: int | None = None
) -> bytes:
    """A batch of so many records; `declares` is what a zstd frame says that it becomes."""
    data = COMPRESS[codec](pieces, declares)
    last = count - 1
    rest = struct.pack(">hiqqqhii", codec, last, 10**12, 10**12, -1, -1, -1, count) + data
    head = struct.pack(">qiibI", 0, 9 + len(rest), -1, 2, google_crc32c.value(rest))
    return head + rest


def put(bootstrap: str, topic: str, partition: int, batch: bytes) -> int:
    """Produce a batch as it is; the offset of its first record."""
    body = struct.pack(">hhii", -1, -1, 60_000, 1) + string(topic)
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    with socket.create_connection(
        split_address(bootstrap.split(",", maxsplit=1)[0]), timeout=60
    ) as client:
        client.sendall(write_request(PRODUCE, VERSION, 1, "bombs", body))
        answer = receive(client, struct.unpack(">i", receive(client, 4))[0])
    at = 4 + 4 + 2 + len(topic) + 4 + 4
    error_code, offset = struct.unpack_from(">hq", answer, at)
    assert error_code == 0, f"a broker refuses the batch with {error_code}"
    return int(offset)


def receive(client: socket.socket, count: int) -> bytes:
    """Receive `count` bytes."""
    data = b""
    while len(data) < count:
        part = client.recv(count - len(data))
        assert part, "closed"
        data += part
    return data


def varint(value: int) -> bytes:
    """Zigzag."""
    raw, out = (value << 1) ^ (value >> 63), b""
    while raw > 127:
        out += bytes([raw & 127 | 128])
        raw >>= 7
    return out + bytes([raw])


def string(text: str) -> bytes:
    """Encode a string of the protocol."""
    return struct.pack(">h", len(text)) + text.encode()


def _zstd(pieces: Iterator[bytes], declares: int | None) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    data = b"".join(map(compressor.compress, pieces)) + compressor.flush()
    if declares is None:
        return data
    # The header of a frame without a size: window descriptor only. One with a size of 8 bytes:
    window = data[5:6]
    return data[:4] + bytes([data[4] | 0xC0]) + window + struct.pack("<Q", declares) + data[6:]


def _gzip(pieces: Iterator[bytes], _: int | None) -> bytes:
    compressor = zlib.compressobj(1, wbits=31)
    return b"".join(map(compressor.compress, pieces)) + compressor.flush()


def _lz4(pieces: Iterator[bytes], _: int | None) -> bytes:
    compressor = lz4.frame.LZ4FrameCompressor(
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,  # Kafka reads no other
    )
    data = compressor.begin()
    return data + b"".join(map(compressor.compress, pieces)) + compressor.flush()


def _snappy(pieces: Iterator[bytes], _: int | None) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(piece)) for piece in pieces]
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return head + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


COMPRESS: Final[dict[int, Callable[[Iterator[bytes], int | None], bytes]]] = {
    GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd,
}  # fmt: skip
