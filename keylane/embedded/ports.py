"""Free ports for servers that will be ended and started again on the same port.

In:    nothing.  Out: port numbers nobody listens on now.
Shell: binds sockets for an instant.

A port that the system picks (bind to 0) comes from the range it also takes the near ends of
outgoing connections from. While a server is down, a client that keeps trying may then be given
the server's own port, which blocks the restart. So ports are drawn from below that range.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

FIRST_PORT: Final = 15_000
LAST_PORT_FALLBACK: Final = 32_767
"""End of the range where the system does not tell; Linux starts at 32768, others at 49152."""

TRY_COUNT: Final = 200

_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_free_port(address: str = "127.0.0.1") -> int:
    """A port that is free on `address` now, outside the range of outgoing connections.

    Raises:
        OSError: none was found in `TRY_COUNT` draws.
    """
    last_port = max(FIRST_PORT + 1000, _first_outgoing_port() - 1)
    # The system's own chance: a seeded generator would give parallel test runs the same ports.
    draw = random.SystemRandom()
    for _ in range(TRY_COUNT):
        port = draw.randint(FIRST_PORT, last_port)
        if is_free(address, port):
            return port
    raise OSError(f"no free port on {address} in {FIRST_PORT}-{last_port}")


def is_free(address: str, port: int) -> bool:
    """Whether a server could listen there; a port whose old connections linger counts as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _first_outgoing_port() -> int:
    if _RANGE_FILE.exists():
        return int(_RANGE_FILE.read_text().split()[0])
    return LAST_PORT_FALLBACK + 1
