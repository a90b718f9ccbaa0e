"""Ports that are drawn for servers: free, in a row, and drawn by one process alone."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from keylane.embedded import ports
from keylane.embedded.ports import BLOCK_PORTS, find_free_port

DRAWS = 40
DRAW = f"""
from keylane.embedded.ports import find_free_port
print(*[find_free_port() for _ in range({DRAWS})], flush=True)
input()
"""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[ports._Ports]:
    """Draws of a process that has drawn nothing yet."""
    monkeypatch.setattr(ports, "_PORTS", fresh := ports._Ports())
    yield fresh
    for block in fresh._blocks:
        block.mark.close()


def _first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def test_processes_side_by_side_draw_no_port_of_each_other() -> None:
    """Also where no server listens at them yet: that is what collided in two test runs."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", DRAW],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(3)
        ]
        found = [set(map(int, _first_line(child).split())) for child in children]
        found.append({find_free_port() for _ in range(DRAWS)})
        for child in children:
            child.communicate("\n")
    assert all(len(each) == DRAWS for each in found)
    assert len(set[int]().union(*found)) == len(found) * DRAWS


def test_a_port_is_drawn_again_when_all_others_had_their_turn(drawn: ports._Ports) -> None:
    """A server that is down for a while finds its port free."""
    first = [drawn.draw("127.0.0.1", 1) for _ in range(BLOCK_PORTS // 2)]
    assert len(set(first)) == len(first)


def test_ports_in_a_row_are_all_free(drawn: ports._Ports) -> None:
    """One that is taken is passed over."""
    start = drawn.draw("127.0.0.1", 1)
    with socket.socket() as server:
        with suppress(OSError):  # another program has it already
            server.bind(("127.0.0.1", start + 3))
        found = drawn.draw("127.0.0.1", 5)
        assert found > start + 3
        assert all(ports.is_free("127.0.0.1", found + step) for step in range(5))


def test_a_process_that_needs_more_claims_another_block(drawn: ports._Ports) -> None:
    """Where its own has no run that is free."""
    drawn.draw("127.0.0.1", 1)
    start = drawn._blocks[0].first
    with ExitStack() as stack:
        for port in range(start + 1, start + BLOCK_PORTS, 2):
            server = stack.enter_context(socket.socket())
            with suppress(OSError):  # another program has it already
                server.bind(("127.0.0.1", port))
        found = drawn.draw("127.0.0.1", 2)
    assert not start <= found < start + BLOCK_PORTS
    assert len(drawn._blocks) == 2
