"""SIGINT and SIGTERM: the first asks for a clean stop, the second for one at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_signals(on_signal: Callable[[], None], *, is_wanted: bool) -> Iterator[None]:
    """Call `on_signal` on the loop at each signal; handlers from before are back afterwards.

    Outside the main thread Python takes no handlers: then there are none.
    """
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def handler(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(on_signal)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in SIGNALS:
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)
