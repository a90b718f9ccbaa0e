"""Compile the Java programs of the tests, which are a single file each.

Eclipse's compiler is a jar of the lock in `tests/streams`, since a packaged Java has none. The
classes are kept in keylane's cache folder, under the sum of the source and of the jars.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from keylane.embedded.jar_lock import FILE_NAME, LockedJar, parse_lock
from keylane.embedded.java import find_java
from keylane.embedded.resolve import cache_folder, hold_lock, kafka_lock, resolve_class_path

LOCK: Final = Path(__file__).resolve().parent / "streams" / FILE_NAME
STREAMS: Final = parse_lock(LOCK.read_text(encoding="utf-8"))
"""Jars of Kafka Streams and of the compiler; `tools/lock_jars.py` writes the lock."""
COMPILER: Final = "org.eclipse.jdt.internal.compiler.batch.Main"
COMPILER_JAR: Final = "org.eclipse.jdt:ecj:"
JVM_ARGS: Final = ("-Xmx160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def compiler_jars() -> tuple[LockedJar, ...]:
    """Jars of a program that needs Kafka's own alone, and of the compiler.

    Kafka's come first: an archive of their classes (`tests.fast_java`) fits only then.
    """
    own = tuple(jar for jar in STREAMS if jar.coordinates.startswith(COMPILER_JAR))
    return (*kafka_lock(), *own)


@cache
def compile_source(source: Path, jars: Sequence[LockedJar]) -> str:
    """Compile a source, once per content; return the class path of its main class.

    jars: those that the program needs, and the compiler's.
    """
    class_path = resolve_class_path(jars)
    sums = "".join(jar.sha256 for jar in jars)
    fingerprint = hashlib.sha256(source.read_bytes() + sums.encode()).hexdigest()[:16]
    classes = cache_folder() / f"java-{source.stem}" / fingerprint
    classes.mkdir(parents=True, exist_ok=True)
    done = classes / "compiled"
    with hold_lock(classes / "lock"):
        if not done.exists():
            command = [str(find_java()), *JVM_ARGS, "-cp", class_path, COMPILER]
            command += ["-17", "-proc:none", "-nowarn", "-cp", class_path]
            subprocess.run([*command, "-d", str(classes), str(source)], check=True)
            done.touch()
    return f"{class_path}:{classes}"
