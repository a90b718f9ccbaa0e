"""The sums of the jars that keylane runs: no file of a repository or cache is another one.

A lock names every jar of a class path in its order: which jars these are does not depend on what
a repository says, and none is taken whose bytes are others. `tools/lock_jars.py` writes locks.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from keylane.errors import KafkaUnavailable

FORMAT: Final = "keylane-jars"
VERSION: Final = 2
FILE_NAME: Final = "jars.lock.json"

_COORDINATES: Final = re.compile(
    r"[A-Za-z0-9_-][A-Za-z0-9._-]*(?::[A-Za-z0-9_-][A-Za-z0-9._-]*){2}"
)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LockedJar:
    """A jar that may be run: `coordinates` are group:artifact:version."""

    coordinates: str
    sha256: str
    size_bytes: int


def read_lock(package: str) -> tuple[LockedJar, ...]:
    """The lock that is part of `package`, such as "keylane.embedded"."""
    return parse_lock(files(package).joinpath(FILE_NAME).read_text(encoding="utf-8"))


def parse_lock(text: str) -> tuple[LockedJar, ...]:
    """The jars of a lock, in the order of the class path.

    Raises:
        ValueError: it is no lock; the text says which entry is wrong.
    """
    document = json.loads(text)
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (
        FORMAT,
        VERSION,
    ):
        raise ValueError(f"no lock of jars: expected format {FORMAT} version {VERSION}")
    jars = tuple(_parse_entry(entry) for entry in document.get("jars", ()))
    if not jars or len({jar.coordinates for jar in jars}) != len(jars):
        raise ValueError("no lock of jars: it is empty, or names a jar twice")
    return jars


def _parse_entry(entry: Any) -> LockedJar:
    try:
        jar = LockedJar(entry["coordinates"], entry["sha256"], entry["size_bytes"])
        if (
            _COORDINATES.fullmatch(jar.coordinates)
            and _SHA256.fullmatch(jar.sha256)
            and type(jar.size_bytes) is int
            and jar.size_bytes > 0
        ):
            return jar
    except (KeyError, TypeError):
        pass
    raise ValueError(f"no lock of jars: {entry!r} needs coordinates, sha256 and size_bytes")


def dump_lock(jars: tuple[LockedJar, ...]) -> str:
    """The text that `parse_lock` reads."""
    entries = [
        {"coordinates": jar.coordinates, "sha256": jar.sha256, "size_bytes": jar.size_bytes}
        for jar in jars
    ]
    return json.dumps({"format": FORMAT, "version": VERSION, "jars": entries}, indent=2) + "\n"


def check_jar(jar: LockedJar, path: Path) -> None:
    """Hash the file: some 2 GB/s, so that the 52 jars of Kafka (49 MB) take 40 ms at each start.

    Raises:
        KafkaUnavailable: the file has another size or sum than the lock says.
        OSError: it cannot be read.
    """
    size_bytes = path.stat().st_size
    if size_bytes != jar.size_bytes:
        raise _refusal(jar, path, f"{jar.size_bytes} bytes", f"{size_bytes} bytes")
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != jar.sha256:
        raise _refusal(jar, path, f"sha256 {jar.sha256}", f"sha256 {sha256}")


def _refusal(jar: LockedJar, path: Path, wanted: str, found: str) -> KafkaUnavailable:
    return KafkaUnavailable(
        f"{jar.coordinates}: {path} is not the jar that keylane was tested with, and is not run:"
        f" expected {wanted}, got {found}. Delete the file to fetch it again; where the same comes"
        " again, the Maven repository (or the mirror in Maven's settings) has other bytes"
    )
