"""Java processes of the tests that start in half the time: by an archive of Kafka's classes.

Source: JEP 350 (dynamic archives).

The first compiler alone starts fastest, and a warm broker is slower by it: so this is for tests,
and `bench/` does without.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from keylane.embedded import EmbeddedKafka
from keylane.embedded.java import find_java
from keylane.embedded.resolve import hold_lock, resolve_class_path

OPTIONS: Final = "JDK_JAVA_OPTIONS"
GIVEN: Final = os.environ.get(OPTIONS, "")
QUIET: Final = "-Xlog:disable"
"""An archive that does not fit is passed over, with a line on stdout otherwise."""
FIRST_COMPILER_ONLY: Final = "-XX:TieredStopAtLevel=1"


def start_java_fast() -> None:
    """Make the archive if there is none; from then on each Java started here uses it.

    A Java that was linked without an archive of its classes gets that one first, as Kafka's stands
    on it. A Java that cannot make one does without.
    """
    stem = Path(sys.prefix) / f"kafka-{_fingerprint()}"
    archive, base = stem.with_suffix(".jsa"), stem.with_suffix(".base.jsa")
    with hold_lock(stem.with_suffix(".lock")):
        made = archive.exists() or _make(archive, base)
    _use(FIRST_COMPILER_ONLY, *([_archives(base, archive)] if made else []))


def _archives(base: Path, *others: Path) -> str:
    """The option for an archive above `base`; a Java that brings its own has none made."""
    paths = [base, *others] if base.exists() else others
    return f"-XX:SharedArchiveFile={os.pathsep.join(map(str, paths))}"


def _fingerprint() -> str:
    """Of the Java and of the jars: an archive fits these alone."""
    plain = {name: value for name, value in os.environ.items() if name != OPTIONS}
    version = subprocess.run(
        [find_java(), "-version"], env=plain, capture_output=True, text=True, check=True
    ).stderr
    jars = [
        (path, Path(path).stat().st_mtime_ns) for path in resolve_class_path().split(os.pathsep)
    ]
    return hashlib.sha256(repr((version, jars)).encode()).hexdigest()[:16]


def _make(archive: Path, base: Path) -> bool:
    """Of what a broker has loaded when it stops; whether Java takes it."""
    if not _java("-Xshare:on", "-version"):
        _java("-Xshare:dump", f"-XX:SharedArchiveFile={base}")
    partial = archive.with_suffix(".tmp")
    _use(*([_archives(base)] if base.exists() else []), f"-XX:ArchiveClassesAtExit={partial}")
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "kafka"):
        pass
    os.environ[OPTIONS] = GIVEN
    taken = _java("-Xshare:on", _archives(base, partial), "-cp", resolve_class_path(), "-version")
    if taken:
        partial.replace(archive)
    return taken


def _java(*options: str) -> bool:
    """Run Java once; whether it could."""
    done = subprocess.run([find_java(), *options], capture_output=True, check=False)
    return done.returncode == 0


def _use(*options: str) -> None:
    os.environ[OPTIONS] = " ".join(filter(None, [GIVEN, *options, QUIET]))
