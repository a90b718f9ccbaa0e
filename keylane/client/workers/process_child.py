"""The other end of `ProcessExecutor`: a process that runs the handler, one record at a time."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keylane.client.values import ConsumerRecord

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class HandlerRaised(Exception):
    """Stands for an error of the handler that cannot be pickled; the text is its type's name."""


def serve(pipe: Connection, handle: Callable[[ConsumerRecord], Any]) -> None:
    """Work until the pipe is closed. Answers are (result, error)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the parent, which ends this one
    while True:
        try:
            record = pipe.recv()
        except (EOFError, OSError):
            return
        answer: tuple[Any, Exception | None]
        try:
            answer = handle(record), None
        except Exception as error:  # noqa: BLE001 - it is raised in the parent
            answer = None, portable(error)
        try:
            packed = pickle.dumps(answer)
        except Exception as error:  # noqa: BLE001 - same
            packed = pickle.dumps((None, portable(error)))
        try:
            pipe.send_bytes(packed)
        except OSError:
            return


def portable(error: Exception) -> Exception:
    """Return an error that the parent can read, with its type's name at least."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever its class does
        return HandlerRaised(type(error).__qualname__)
    return error
