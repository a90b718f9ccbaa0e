"""Open files of this process: as many as the system gives, and some kept for keylane's own use.

Source: getrlimit(2), accept(2); libuv's `uv__emfile_trick`.

A client's connection takes two: its own, and the broker's. Without files left uvloop takes
connections and closes them without a word, and asyncio reports each try. Neither loses a listener.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from keylane.config.node import ProxyConfig
from keylane.errors import ConfigInvalid
from keylane.proxy.runtime.log_pace import LogPace
from keylane.proxy.runtime.stats import ProxyStats

log = logging.getLogger("keylane.server")

LIMIT_MIN: Final = 256
"""Below it not even a small cluster's own connections have room."""
LIMIT_MAX: Final = 2**20
"""Taken for a limit that is infinite."""
OWN_MIN: Final = 128
OWN_MAX: Final = 2048
OWN_SHARE: Final = 8
"""An eighth is for listeners, for connections of keylane's own, and for files, within bounds."""
CONTROL_SHARE: Final = 8
"""Of the limit, the most that the control port takes."""
LOG_INTERVAL_S: Final = 10.0
SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class Budget:
    """Numbers of connections that there may be."""

    clients: int
    control: int


def raise_limit() -> int:
    """Raise the limit of open files as far as the system lets this process; return it."""
    if sys.platform == "win32":
        return LIMIT_MAX
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS has a bound beside the hard one
        log.info("limit of open files stays soft=%d hard=%d reason=%s", soft, hard, error)
        return soft
    return wanted


def budget_of(limit: int, config: ProxyConfig) -> Budget:
    """Return the connections that a limit has room for. Raises: ConfigInvalid (it is too low)."""
    if limit < LIMIT_MIN:
        raise ConfigInvalid(
            f"open files: the limit is {limit}, at least {LIMIT_MIN} are needed; raise it"
            " (`ulimit -n`, LimitNOFILE of systemd, or the container's)"
        )
    control = 0
    if config.control is not None:
        control = min(config.control_connections_max, limit // CONTROL_SHARE)
    own = min(max(OWN_MIN, limit // OWN_SHARE), OWN_MAX)
    # Of the control port's each may be in a handshake while another one holds its place.
    room = max(1, (limit - own - 2 * control) // 2)
    if room < config.connections_max:
        log.warning(
            "connections_max is lowered from=%d to=%d open_files=%d reason=each takes two files"
            " remedy=raise the limit (`ulimit -n`, LimitNOFILE), or set connections_max",
            config.connections_max, room, limit,
        )  # fmt: skip
    return Budget(min(room, config.connections_max), control)


def is_write_to_closed(error: BaseException | None) -> bool:
    """Return whether uvloop met a transport that it has closed (`UVHandle._ensure_alive`)."""
    return isinstance(error, RuntimeError) and str(error).endswith("; the handler is closed")


class Descriptors:
    """State of the files that are left. Use: `watch` once, `probe` once a second."""

    def __init__(self, stats: ProxyStats, clock: Callable[[], float]) -> None:
        self._stats, self._clock = stats, clock
        self._pace = LogPace(lines_max=1, interval_s=LOG_INTERVAL_S)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count the loop's failures to accept, each of which it would log.

        A trace is kept out of the log where a client with TLS resets its connection while it is
        written to: uvloop takes that for a mistake.
        """
        before = loop.get_exception_handler()

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if isinstance(error, OSError) and error.errno in SCARCE and "socket" in context:
                self.failed(str(error))
            elif is_write_to_closed(error) and "protocol" in context:
                log.debug("connection ended while it was written to reason=%s", error)
            elif before is not None:
                before(loop, context)
            else:
                loop.default_exception_handler(context)

        loop.set_exception_handler(handle)

    def probe(self) -> None:
        """Open one more file: uvloop does not report that there is none left."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in SCARCE:
                self.failed(str(error))

    def failed(self, reason: str) -> None:
        """Count a connection that could not be accepted, and log it once in a while."""
        self._stats.accepts_failed += 1
        left_out = self._pace.let(self._clock())
        if left_out is not None:
            log.error(
                "no connection can be accepted reason=%s count=%d remedy=raise the limit of open"
                " files, or lower connections_max",
                reason, left_out + 1,
            )  # fmt: skip
