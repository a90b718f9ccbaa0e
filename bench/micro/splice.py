"""Cost of relaying a large body: copied through a buffer, or moved by the kernel (splice).

    python -m bench.micro.splice

In:    nothing; answers of 1 and 16 MiB from one loopback connection to another.
Out:   one line per size and way: CPU seconds per GB, wall seconds per GB (best of 5).
Source: splice(2).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

SIZES: Final = (1 << 20, 16 << 20)
TOTAL_BYTES: Final = 1 << 30
RUNS: Final = 5
PIPE_BYTES: Final = 1 << 20
"""The largest pipe that a user may have by default (/proc/sys/fs/pipe-max-size)."""

Relay = Callable[[socket.socket, socket.socket, int], None]


def copied(source: socket.socket, target: socket.socket, size_bytes: int) -> None:
    """Copy as `proxy.session.session` does: fill a buffer of the body's size, then write it."""
    body = memoryview(bytearray(size_bytes))
    filled = 0
    while filled < size_bytes:
        filled += source.recv_into(body[filled:])
    target.sendall(body)


def spliced(source: socket.socket, target: socket.socket, size_bytes: int) -> None:
    """Through a pipe, without coming to user space."""
    reading, writing = _pipe()
    moved = 0
    while moved < size_bytes:
        held = os.splice(source.fileno(), writing, min(PIPE_BYTES, size_bytes - moved))
        moved += held
        while held:
            held -= os.splice(reading, target.fileno(), held)


_PIPES: list[tuple[int, int]] = []


def _pipe() -> tuple[int, int]:
    """One for the whole run, as a connection would keep its own."""
    if not _PIPES:
        import fcntl  # noqa: PLC0415 - not on Windows

        pipe = os.pipe()
        fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        _PIPES.append(pipe)
    return _PIPES[0]


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def measure(relay: Relay, size_bytes: int) -> tuple[float, float]:
    """(CPU seconds of the relaying thread, wall seconds) for TOTAL_BYTES."""
    broker, source = pair()
    target, client = pair()
    count = TOTAL_BYTES // size_bytes
    body = bytes(size_bytes)

    def send() -> None:
        for _ in range(count):
            broker.sendall(body)

    def receive() -> None:
        room = bytearray(1 << 20)
        left = TOTAL_BYTES
        while left:
            left -= client.recv_into(room)

    threads = [threading.Thread(target=work) for work in (send, receive)]
    for thread in threads:
        thread.start()
    started_s, cpu_s = time.perf_counter(), time.thread_time()
    for _ in range(count):
        relay(source, target, size_bytes)
    cpu_s = time.thread_time() - cpu_s
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - started_s
    for each in (broker, source, target, client):
        each.close()
    return cpu_s, wall_s


def main() -> None:
    """Print a line per size and way."""
    if not hasattr(os, "splice"):
        print("this system has no splice")
        return
    for size_bytes in SIZES:
        for relay in (copied, spliced):
            runs = [measure(relay, size_bytes) for _ in range(RUNS)]
            scale = 1e9 / TOTAL_BYTES
            cpu_s, wall_s = (min(column) * scale for column in zip(*runs, strict=True))
            mib = size_bytes >> 20
            print(f"{relay.__name__:8} {mib:3} MiB  {cpu_s:.3f} CPU s/GB  {wall_s:.3f} s/GB")


if __name__ == "__main__":
    main()
