"""A node's log: keylane's own lines, and one line where its Kafka clients would write thousands.

aiokafka, which writes the journal and keylane's other topics, logs each try of each client while a
broker is away, some 20 a second. That it goes on is no news: one line says that it has begun, one
that it has ended. The level debug shows all of it as it is.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger("keylane.kafka")

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
LIBRARY: Final = "aiokafka"
QUIET_S: Final = 10.0
"""Time without a complaint after which all is well; clients try many times in it."""
OTHER_PAUSE_S: Final = 60.0
"""Between two lines of the same kind that are no loss of a broker."""
OTHER_KINDS_MAX: Final = 100
REFUSED: Final = "authoriz"
"""Part of aiokafka's lines about a missing right."""


def set_up_logging(level: str) -> None:
    """Write keylane's lines of `level` and above to stderr, and warnings of all others.

    Raises:
        ValueError: `level` is none of logging's names.
    """
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT, stream=sys.stderr)
    keylane, library = logging.getLogger("keylane"), logging.getLogger(LIBRARY)
    keylane.setLevel(level.upper())
    is_logged_whole = keylane.isEnabledFor(logging.DEBUG)
    library.propagate = is_logged_whole
    library.handlers = [] if is_logged_whole else [ClientTrouble()]


@contextmanager
def muted_log() -> Iterator[None]:
    """Write no line of keylane, nor of the Kafka clients inside of it, while a command looks."""
    loggers = [logging.getLogger(name) for name in ("keylane", LIBRARY)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _on_loop(seconds: float, do: Callable[[], None]) -> None:
    """Call `do` later, if there is a loop; without one the end of the trouble is not logged."""
    try:
        asyncio.get_running_loop().call_later(seconds, do)
    except RuntimeError:
        log.debug("no event loop: the end of this trouble is not logged")


class ClientTrouble(logging.Handler):
    """Logs once that the clients inside of keylane are in trouble, and once that they are not.

    What is no loss of a broker, an error with a trace or a missing right, is logged as it is, each
    kind once a minute.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = _on_loop,
    ) -> None:
        """clock: in seconds; later: calls a function after some seconds."""
        super().__init__(logging.WARNING)
        self._clock, self._later = clock, later
        self._since_s: float | None = None
        """Time when the trouble began that is not over; None: all is well."""
        self._last_s = 0.0
        self._count = 0
        self._logged_s: dict[str, float] = {}
        """Time when each other kind of line was logged."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take in one line of aiokafka's; one that fails to format must not raise in the caller."""
        try:
            self._take(record)
        except Exception:  # noqa: BLE001 -- as every handler of `logging` does
            self.handleError(record)

    def _take(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info or REFUSED in text.lower():
            self._log_other(record)
            return
        now_s = self._clock()
        if self._since_s is not None and now_s - self._last_s >= QUIET_S:
            self._look()  # the timer is late, or there was none
        self._last_s = now_s
        self._count += 1
        if self._since_s is None:
            self._since_s = now_s
            log.warning("Kafka clients inside keylane are in trouble reason=%s", text)
            self._later(QUIET_S, self._look)

    def _look(self) -> None:
        """Log the end of the trouble, if it is over."""
        if self._since_s is None:
            return
        quiet_s = self._clock() - self._last_s
        if quiet_s < QUIET_S:
            self._later(QUIET_S - quiet_s, self._look)
            return
        log.warning(
            "Kafka clients inside keylane are well again trouble_s=%.0f complaints=%d",
            self._last_s - self._since_s, self._count,
        )  # fmt: skip
        self._since_s, self._count = None, 0

    def _log_other(self, record: logging.LogRecord) -> None:
        kind, now_s = str(record.msg), self._clock()
        if now_s - self._logged_s.get(kind, -OTHER_PAUSE_S) < OTHER_PAUSE_S:
            return
        if len(self._logged_s) >= OTHER_KINDS_MAX:
            self._logged_s.clear()
        self._logged_s[kind] = now_s
        log.log(record.levelno, "%s", record.getMessage(), exc_info=record.exc_info)
