"""keylane/embedded/folder_lock.py: one cluster on a folder, for as long as any process of it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keylane.embedded.folder_lock import FolderLock
from keylane.errors import KafkaUnavailable

WAITS = "import sys; sys.stdin.read()"


def test_a_second_lock_names_the_folder_and_the_holder(tmp_path: Path) -> None:
    """The line names the folder and the process that has it; also within one process."""
    FolderLock(tmp_path).hold()

    with pytest.raises(KafkaUnavailable) as refused:
        FolderLock(tmp_path).hold()

    assert f"{tmp_path} is in use by process {os.getpid()}" in str(refused.value)


def test_a_lock_is_held_once_and_released_once(tmp_path: Path) -> None:
    """Holding again gives the same descriptor; after the release another one gets the lock."""
    lock, other = FolderLock(tmp_path / "new"), FolderLock(tmp_path / "new")
    held = lock.hold()

    again = lock.hold()
    lock.release()
    lock.release()

    assert held == again
    other.hold()


def test_a_file_system_without_locks_is_named_by_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's error has no file name; nothing stays open."""
    taken: list[int] = []

    def refuse(fd: int, _operation: int) -> None:
        taken.append(fd)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)

    with pytest.raises(KafkaUnavailable) as refused:
        FolderLock(tmp_path).hold()

    assert str(refused.value) == f"data folder {tmp_path}: No locks available"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(taken[0])


def test_a_child_keeps_the_lock(tmp_path: Path) -> None:
    """The lock is free when the last process that inherited it has ended, and not before."""
    lock, other = FolderLock(tmp_path), FolderLock(tmp_path)
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(lock.hold(),)) as child:
        lock.release()

        with pytest.raises(KafkaUnavailable, match="is in use"):
            other.hold()

        child.communicate()
    other.hold()


def test_a_holder_that_has_ended_is_reported_as_such(tmp_path: Path) -> None:
    """The broker outlives the process that took the lock: try again, nothing is to be stopped."""
    lock = FolderLock(tmp_path)
    lock.hold()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "lock").write_text(f"{ended.pid}\n")

    with pytest.raises(KafkaUnavailable, match=f"process {ended.pid} has ended.*try again"):
        FolderLock(tmp_path).hold()


def test_a_holder_without_a_pid_yet_is_refused(tmp_path: Path) -> None:
    """Between taking the lock and writing the pid the file is empty: still in use."""
    FolderLock(tmp_path).hold()
    (tmp_path / "lock").write_text("")

    with pytest.raises(KafkaUnavailable, match="in use by another process"):
        FolderLock(tmp_path).hold()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """A file where the folder should be is named."""
    (tmp_path / "file").write_text("")

    with pytest.raises(KafkaUnavailable, match=r"data folder .*: File exists"):
        FolderLock(tmp_path / "file").hold()
