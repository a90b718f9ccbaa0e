"""Compile every kernel before the process says it is ready.

Compiling takes seconds: in the middle of a fetch it would be a stall.
"""

from __future__ import annotations

import struct
from typing import Final

from keylane.kernel.library import address_of, as_bytes_array, crc32c_at, load
from keylane.kernel.pick import index_records
from keylane.kernel.split import split_block
from keylane.keyrange.key_split import even_split
from keylane.wire.batch import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CRC_POSITION,
    CRC_START,
    LENGTH_PREFIX_BYTES,
)

_RECORD: Final = bytes((12, 0, 0, 0, 1, 1, 0))
"""Length 6 (zigzag 12), attributes, both deltas 0, null key, null value, no header."""
_BYTES_MAX: Final = 1 << 20


def warm_up() -> None:
    """Load all kernels, compiled before or now; split one block with them, and pick from it.

    With read-only and with writable memory, as decompressed data comes in both.
    """
    load()
    batches = _batch(0) + _batch(1)  # two small ones: they are joined
    for buffer in (batches, bytearray(batches)):
        block = split_block(
            buffer, even_split(2), plain_bytes_max=_BYTES_MAX, batch_bytes_max=_BYTES_MAX
        )
        assert block is not None and block.record_count == 2
        held = index_records(buffer, plain_bytes_max=_BYTES_MAX, batch_bytes_max=_BYTES_MAX)
        assert held is not None and held.compact([1]).pick([0]) == held.pick([1])


def _batch(base_offset: int) -> bytes:
    """Write a batch of one record, without its CRC first: that is what is compiled here."""
    length = BATCH_HEADER_BYTES - LENGTH_PREFIX_BYTES + len(_RECORD)
    batch = bytearray(
        BATCH_HEADER.pack(base_offset, length, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1) + _RECORD
    )
    body = as_bytes_array(batch)[CRC_START:]
    struct.pack_into(">I", batch, CRC_POSITION, crc32c_at(address_of(body), body.size))
    return bytes(batch)
