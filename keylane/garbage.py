"""A pause of Python's garbage collector, while many objects are made that are no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
