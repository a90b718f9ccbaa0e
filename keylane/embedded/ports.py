"""Free ports for servers that will be ended and started again on the same port.

A port that the system picks (bind to 0) comes from the range it also takes the near ends of
outgoing connections from. While a server is down, a client that keeps trying may then be given
the server's own port, which blocks the restart. So ports are drawn from below that range.

Between the draw and the server, and while the server is down, no socket holds the port. So each
process draws from its own blocks: a UDP socket at a block's first port claims it among all
processes that draw here, for as long as the process lives. In a block ports take turns.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FIRST_PORT: Final = 15_000
LAST_PORT_FALLBACK: Final = 32_767
"""End of the range where the system does not say; Linux starts at 32768, others at 49152."""
BLOCK_PORTS: Final = 128
"""Several times what one process keeps ports for at a time, a few dozens."""
LOOPBACK: Final = "127.0.0.1"

_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_free_port(address: str = LOOPBACK, *, in_a_row: int = 1) -> int:
    """The first of so many ports in a row that are free on `address` now.

    They are outside the range of outgoing connections.

    Raises:
        OSError: there are none.
    """
    return _PORTS.draw(address, in_a_row)


def is_free(address: str, port: int) -> bool:
    """Return whether a server could listen there; lingering old connections do not matter."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


@dataclass(slots=True)
class _Block:
    """Ports from `first` on that this process alone draws from."""

    first: int
    mark: socket.socket
    """Holds the claim."""
    next: int = 0

    def draw(self, address: str, in_a_row: int) -> int | None:
        """The next free run; None: there is none."""
        for _ in range(BLOCK_PORTS):
            if self.next + in_a_row > BLOCK_PORTS:
                self.next = 0
            port = self.first + self.next
            if all(is_free(address, port + step) for step in range(in_a_row)):
                self.next += in_a_row
                return port
            self.next += 1
        return None


class _Ports:
    """Blocks of this process."""

    def __init__(self) -> None:
        self.reset()
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Draw from no block: a child that was forked claims its own."""
        self._lock = threading.Lock()
        self._blocks: list[_Block] = []

    def draw(self, address: str, in_a_row: int) -> int:
        assert 0 < in_a_row <= BLOCK_PORTS
        with self._lock:
            for block in self._blocks:
                port = block.draw(address, in_a_row)
                if port is not None:
                    return port
            for first in _firsts():
                claimed = _claim(first)
                if claimed is not None:
                    self._blocks.append(claimed)
                    port = claimed.draw(address, in_a_row)
                    if port is not None:
                        return port
        raise OSError(f"no {in_a_row} free ports in a row on {address} from {FIRST_PORT} on")


def _claim(first: int) -> _Block | None:
    """A block; None: another process draws from it, or this one already."""
    mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        mark.bind((LOOPBACK, first))
    except OSError:
        mark.close()
        return None
    return _Block(first, mark)


def _firsts() -> list[int]:
    """First ports of all blocks, in an order of the system's own chance.

    A seeded generator would have parallel test runs try the same ones one after the other.
    """
    outgoing = LAST_PORT_FALLBACK + 1
    if _RANGE_FILE.exists():
        outgoing = int(_RANGE_FILE.read_text().split()[0])
    end = max(FIRST_PORT + 1000, outgoing)
    firsts = list(range(FIRST_PORT, end - BLOCK_PORTS + 1, BLOCK_PORTS))
    random.SystemRandom().shuffle(firsts)
    return firsts


_PORTS: Final = _Ports()
