"""Raw memory for kernels: unaligned loads, stores and copies at integer addresses.

Loads give int64 unless their name says `_le`, then uint64.
Compiled, an access is one machine instruction and is NOT checked: the caller has compared it with
the end of its buffer. As plain Python (NUMBA_DISABLE_JIT=1) addresses are virtual and every access
is checked, so the hostile tests run there find any access outside a buffer as an IndexError.

Why addresses and not arrays: one block holds many buffers (the wire bytes, one per decompressed
batch, one per lane), and a kernel that takes them all at once saves the call per batch. It also
keeps reference counts and negative-index checks out of the loops.
"""

from __future__ import annotations

import sys

from keylane.kernel.jit import JIT

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

else:
    from keylane.kernel.memory_checked import (
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
