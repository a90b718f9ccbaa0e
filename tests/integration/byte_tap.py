"""A real broker behind a listener that keeps all bytes that it is sent."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from keylane.config.node import split_address
from keylane.embedded import EmbeddedKafka
from keylane.embedded.ports import find_free_port

LISTENER: Final = "TAPPED"
CHUNK_BYTES: Final = 1 << 16


class ByteTap:
    """The listener: threads, until `stop`."""

    def __init__(self, port: int, target: str) -> None:
        """target: `host:port` of the real broker."""
        self.behind, self._target = target, split_address(target)
        self.bootstrap = f"127.0.0.1:{port}"
        self.sent: list[bytes] = []
        """What came for the broker, a piece of one connection each."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def stop(self) -> None:
        """End all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for each in self._open:
            each.close()

    def has_sent(self, data: bytes) -> bool:
        """Return whether these bytes were sent, also over the end of a piece."""
        return data in b"".join(self.sent)

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open += [client, broker := socket.create_connection(self._target)]
            for source, sink in ((client, broker), (broker, client)):
                kept = self.sent if source is client else None
                thread = threading.Thread(target=_pump, args=(source, sink, kept))
                self._threads.append(thread)
                thread.start()


def _pump(source: socket.socket, sink: socket.socket, kept: list[bytes] | None) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            if kept is not None:
                kept.append(data)
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@contextmanager
def tapped_broker(folder: Path) -> Iterator[ByteTap]:
    """A broker that names the listener's address as its own, and the listener."""
    broker = EmbeddedKafka(folder, listeners={LISTENER: "PLAINTEXT"})
    port = find_free_port()
    broker.properties["advertised.listeners"] = (
        f"PLAINTEXT://{broker.bootstrap},{LISTENER}://127.0.0.1:{port}"
    )
    with broker:
        tap = ByteTap(port, broker.bootstrap_of(LISTENER))
        try:
            yield tap
        finally:
            tap.stop()
