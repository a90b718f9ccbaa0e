"""Raw memory for kernels: unaligned loads, stores and copies at integer addresses.

In:    addresses from `address_of`.  Out: integers (int64 unless the name says uint64).
Compiled, an access is one machine instruction and is NOT checked: the caller has compared it with
the end of its buffer. As plain Python (NUMBA_DISABLE_JIT=1) addresses are virtual and every access
is checked, so the hostile tests run there find any access outside a buffer as an IndexError.

Why addresses and not arrays: one block holds many buffers (the wire bytes, one per decompressed
batch, one per lane), and a kernel that takes them all at once saves the call per batch. It also
keeps reference counts and negative-index checks out of the loops.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from keylane.kernel.buffers import COPY_SLACK_BYTES, as_bytes_array
from keylane.kernel.jit import JIT, kernel

assert sys.byteorder == "little", "kernels load little-endian words"

if JIT:
    from keylane.kernel.memory_compiled import (
        copy_bytes,
        copy_fast,
        load_i32_be,
        load_i64_be,
        load_u8,
        load_u32_be,
        load_u32_le,
        load_u64_le,
        prefetch_write,
        store_i32_be,
        store_i64_be,
        store_u8,
    )

    @kernel
    def address_of(array: NDArray[np.uint8]) -> int:
        """Return where the array's bytes are; valid only while the array lives."""
        # Compiled, because NumPy builds a dict or a ctypes object for it, which takes longer.
        return array.ctypes.data

else:
    from keylane.kernel.memory_checked import (
        address_of,
        copy_bytes,
        copy_fast,
        load_i32_be,
        load_i64_be,
        load_u8,
        load_u32_be,
        load_u32_le,
        load_u64_le,
        prefetch_write,
        store_i32_be,
        store_i64_be,
        store_u8,
    )

__all__ = [
    "COPY_SLACK_BYTES",
    "address_of",
    "as_bytes_array",
    "copy_bytes",
    "copy_fast",
    "load_i32_be",
    "load_i64_be",
    "load_u8",
    "load_u32_be",
    "load_u32_le",
    "load_u64_le",
    "prefetch_write",
    "store_i32_be",
    "store_i64_be",
    "store_u8",
]
