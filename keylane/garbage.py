"""Python's garbage collector, kept from what is no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def collector_paused() -> Iterator[None]:
    """Have no garbage collected inside.

    Thousands of records would make it run several times, now and then through all objects of the
    process: that took longer than making the records.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def leave_out_modules() -> None:
    """Leave what is in memory now out of all searches for garbage; later calls do nothing.

    For a process that has imported what it needs and collects again and again.
    """
    gc.freeze()
