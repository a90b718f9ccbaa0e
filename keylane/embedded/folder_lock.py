"""The lock on a data folder: two clusters on one folder destroy each other's metadata log.

Source: flock(2): the lock belongs to the open file description, which child processes share; it
is gone when the last of them has closed it, in whatever way. Kafka's own lock (`.lock` in each
of `log.dirs`) is taken by a broker that has written to its metadata log already.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from keylane.errors import KafkaUnavailable, reason_of

LOCK_NAME: Final = "lock"
"""Stays in the folder: a lock file that is removed can be held twice."""
PID_BYTES_MAX: Final = 32


class FolderLock:
    """An exclusive lock on one folder, taken and released many times.

    Invariant: `_fd` is open while this process holds the lock. Processes that were given the
    descriptor hold it too, until they end.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None

    def hold(self) -> int:
        """Take the lock, if it is not held yet; returns the descriptor to be inherited.

        Raises:
            KafkaUnavailable: other processes hold it, or the folder cannot be written.
        """
        if self._fd is None:
            try:
                self._fd = self._take()
            except OSError as error:
                # A folder above it may be to blame; an error of the lock itself names no file.
                place = error.filename or self._folder
                raise KafkaUnavailable(f"data folder {place}: {reason_of(error)}") from error
        return self._fd

    def release(self) -> None:
        """Let go of the lock; brokers that still run keep it. Safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _take(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(fd, PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise KafkaUnavailable(_in_use(self._folder, holder)) from None
        except OSError:
            os.close(fd)
            raise
        return fd


def _in_use(folder: Path, holder: str) -> str:
    """One line for the operator; `holder` is what the lock file says: a pid, or nothing yet."""
    if not holder.isdecimal():
        return f"the data folder {folder} is in use by another process"
    if not _lives(int(holder)):
        return (
            f"the data folder {folder} is in use: process {holder} has ended, and the Kafka that"
            " it started is still stopping; try again in some seconds"
        )
    return (
        f"the data folder {folder} is in use by process {holder}, which runs Kafka on it;"
        " stop that process, or choose another folder"
    )


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True
