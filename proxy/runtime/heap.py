"""Keep freed memory for the next block, where the C library would give it back each time.

Source: glibc manual, "Malloc Tunable Parameters" (mallopt); malloc_trim(3); Python, `gc.freeze`.

A block is split into buffers of half a megabyte that live for milliseconds. By default glibc
returns them to the system as soon as one megabyte is free at the end of its heap, and every page
is then faulted in anew: half of the time of splitting small records.

Imports make some 150,000 objects that stay. Searching them for garbage takes a tenth of the start,
and later stops all work for tens of milliseconds at a time.
"""

from __future__ import annotations

import ctypes
import gc
import platform
from typing import Final

M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
TRIM_BYTES: Final = 64 * 1024**2
"""Free bytes at the end of the heap that are kept: what a few blocks under way take."""
MMAP_BYTES: Final = 32 * 1024**2
"""Larger buffers go back to the system when they are freed; glibc allows no more than this."""


def keep_freed_memory() -> bool:
    """Set both; False where the C library is another one."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    settings = ((M_TRIM_THRESHOLD, TRIM_BYTES), (M_MMAP_THRESHOLD, MMAP_BYTES))
    return all(library.mallopt(name, value) == 1 for name, value in settings)


def give_back() -> bool:
    """Return all that is free to the system; False where none was.

    Called when much of what was kept for long is gone. It takes some 10 ms per GiB, in which the
    allocator's other callers may wait; blocks fault in some of it anew, once.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).malloc_trim(0))


def pause_collection() -> None:
    """Stop the search for garbage while modules are imported: nearly all of it stays."""
    gc.disable()


def resume_collection() -> None:
    """Search again, but only what is made from now on."""
    gc.freeze()
    gc.enable()
