"""CPU seconds of splitting: the cost of lanes beside relaying."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from keylane.proxy.runtime.stats import ProxyStats


class KernelClock:
    """A function, and the CPU time of all threads that call it. Cost of a call: a microsecond."""

    def __init__(
        self,
        function: Callable[..., Any],
        stats: ProxyStats,
        *,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._function, self._stats, self._clock = function, stats, clock
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function and pass on its errors."""
        started_s = self._clock()
        try:
            return self._function(*args, **options)
        finally:
            spent_s = self._clock() - started_s
            with self._lock:  # the one number that is written outside the event loop
                self._stats.kernel_seconds += spent_s
