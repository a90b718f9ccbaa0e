"""A gateway that passes TLS through: it finds the listener by the name that the client asks for.

In:    listeners by name.  Out: a port, and the names that were asked for.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Final, Self

CHUNK: Final = 65_536
HELLO_BYTES_MAX: Final = 16_384


class SniGateway:
    """A Gateway with TLSRoutes. Use: `with SniGateway(listeners) as gateway`."""

    def __init__(self, listeners: Mapping[str, tuple[str, int]], *, port: int) -> None:
        self._listeners, self.port = listeners, port
        self.names: Counter[str] = Counter()
        """How often each name was asked for; "" is a client that sends none."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _stop(self) -> None:
        assert self._server is not None, "it was started"
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = b""
        name = None
        while name is None and len(hello) < HELLO_BYTES_MAX:
            chunk = await reader.read(CHUNK)
            if not chunk:
                break
            hello += chunk
            name = asked_name(hello)
        self.names[name or ""] += 1
        listener = self._listeners.get(name or "")
        if listener is None:
            writer.close()
            return
        there, here = await asyncio.open_connection(*listener)
        here.write(hello)
        try:
            await asyncio.gather(pump(reader, here), pump(there, writer))
        except ConnectionError:
            pass  # one side has gone: so does the other
        finally:
            here.close()
            writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes of one direction, until there are no more."""
    while chunk := await reader.read(CHUNK):
        writer.write(chunk)
        await writer.drain()
    writer.close()


def asked_name(hello: bytes) -> str | None:
    """Name in the first bytes of a TLS connection; "" when it has none, None: not whole yet."""
    found: list[str] = []

    def note(_socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        found.append(name or "")
        return ssl.ALERT_DESCRIPTION_ACCESS_DENIED

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming = ssl.MemoryBIO()
    incoming.write(hello)
    try:
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        return None
    except ssl.SSLError:
        return found[0] if found else ""
    return None
