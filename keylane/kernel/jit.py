"""How kernels are compiled: one decorator for entry points, one for the leaves they inline.

In:    functions of integers, addresses and arrays.  Out: the same, compiled on first use.
Next:  `memory` is what leaves read and write through; `warmup` compiles everything once.
Pure:  apart from reading its own sources and numba's cache on disk.
Source: numba 0.60+, `njit(nogil, cache, forceinline, error_model)`, "Notes on Caching".

numba looks only at the file of a function to tell whether its cached code is stale, not at the
files of what was inlined into it. So the cache lives in a folder named by a digest of all kernel
sources, below NUMBA_CACHE_DIR or else `__pycache__`: changed sources never meet old code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from numba import config, njit

JIT: Final = not config.DISABLE_JIT
"""False under NUMBA_DISABLE_JIT=1: kernels run as plain Python, slow but checked."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _cache_folder() -> str:
    here = Path(__file__).parent
    constants = [here.parent / "wire" / "batch.py", here.parent / "keyrange" / "hash.py"]
    digest = hashlib.sha256()
    for path in [*sorted(here.glob("*.py")), *constants]:
        digest.update(path.read_bytes())
    base = Path(config.CACHE_DIR) if config.CACHE_DIR else here / "__pycache__"
    return str(base / f"kernels-{digest.hexdigest()[:16]}")


_CACHE_FOLDER: Final = _cache_folder()


def _compile(function: Function, **options: Any) -> Function:
    previous, config.CACHE_DIR = config.CACHE_DIR, _CACHE_FOLDER
    try:
        # The decorator looks up where to cache at once, so others' numba code is not touched.
        compiled = njit(nogil=True, cache=True, error_model="numpy", **options)(function)
        return cast("Function", compiled)
    finally:
        config.CACHE_DIR = previous


def kernel(function: Function) -> Function:
    """Compile an entry point: runs without the GIL, cached on disk, never checks for zero."""
    return _compile(function)


def leaf(function: Function) -> Function:
    """Compile a helper that is inlined into each kernel that calls it."""
    return _compile(function, forceinline=True)
