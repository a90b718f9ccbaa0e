"""A control port with made-up answers, for commands that ask one."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any


class FakeControl(http.server.ThreadingHTTPServer):
    """Answers by method and path, without the query; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.asked: list[tuple[str, str, Any]] = []

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.server_port}"

    def answer(self, method: str, path: str, body: Any, *, status: int = 200) -> None:
        """Answer so from now on."""
        self.answers[method, path] = status, body

    def refuse(self, method: str, path: str, status: int, detail: str, **more: Any) -> None:
        """Answer with a problem document."""
        self.answer(method, path, {"status": status, "detail": detail, **more}, status=status)


class _Handler(http.server.BaseHTTPRequestHandler):
    def _serve(self) -> None:
        server = self.server
        assert isinstance(server, FakeControl)
        length = int(self.headers.get("Content-Length") or 0)
        sent = json.loads(self.rfile.read(length)) if length else None
        server.asked.append((self.command, self.path, sent))
        missing = 404, {"status": 404, "detail": "nothing is here"}
        status, body = server.answers.get((self.command, self.path.partition("?")[0]), missing)
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - names of http.server

    def log_message(self, *args: object) -> None:
        """Write nothing."""


@contextlib.contextmanager
def fake_control() -> Iterator[FakeControl]:
    """Serve until the end of the block."""
    with FakeControl() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(60)
