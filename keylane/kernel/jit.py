"""Decorators that compile kernels: one for entry points, one for the leaves they inline.

Source: numba 0.60+, `njit(nogil, forceinline, error_model)`.

Only `build` and tests import this, and with it numba: a proxy loads what was compiled before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from numba import config, njit

JIT: Final = not config.DISABLE_JIT
"""False under NUMBA_DISABLE_JIT=1: kernels run as plain Python, slow but checked."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile an entry point: runs without the GIL, never checks for zero."""
    return cast("Function", njit(nogil=True, error_model="numpy")(function))


def leaf(function: Function) -> Function:
    """Compile a helper that is inlined into each kernel that calls it."""
    return cast("Function", njit(nogil=True, error_model="numpy", forceinline=True)(function))
