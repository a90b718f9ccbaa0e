"""The other end of `ProcessExecutor`: a process that runs the handler, one record at a time."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from keylane.client.values import ConsumerRecord

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Blocked in a process while it starts: it would end before it can stay."""


class HandlerRaised(Exception):
    """Stands for an error of the handler that cannot be pickled; the text is its type's name."""


def serve(pipe: Connection, handle: Callable[[ConsumerRecord], Any]) -> None:
    """Work until the pipe is closed. Answers are (result, error).

    Ctrl+C and a SIGTERM of the whole process group reach the parent as well. It has the record at
    work ended, and closes the pipe then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stay)  # not SIG_IGN: what the handler starts would inherit it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
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


def _stay(_number: int, _frame: object) -> None:
    """Work on."""


def portable(error: Exception) -> Exception:
    """Return an error that the parent can read, with its type's name at least."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever its class does
        return HandlerRaised(type(error).__qualname__)
    return error
