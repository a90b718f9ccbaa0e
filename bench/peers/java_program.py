"""Small Java programs of the benchmark: stock Java consumers, share groups, parallel-consumer.

In:    a file of `bench/peers/java`.  Out: a process that is talked to in lines.
Java compiles the single file when it starts it (JEP 330), so a JDK is needed; a machine without
one leaves these rows out.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from keylane.embedded.jar_lock import FILE_NAME, LockedJar, parse_lock
from keylane.embedded.java import find_java
from keylane.embedded.resolve import kafka_lock, resolve_class_path
from keylane.errors import KafkaUnavailable

SOURCES: Final = Path(__file__).resolve().parent / "java"
PARALLEL_CONSUMER: Final = parse_lock(
    Path(__file__).with_name(FILE_NAME).read_text(encoding="utf-8")
)
"""Lock of its jars beside Kafka's own; `tools/lock_jars.py` writes it."""
PARALLEL_CONSUMER_VERSION: Final = PARALLEL_CONSUMER[0].coordinates.rpartition(":")[2]
JVM_ARGS: Final = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


class JavaMissing(Exception):
    """This machine cannot run the program, and why."""


def start_java(source: str, *args: str, needs: Sequence[LockedJar] = ()) -> subprocess.Popen[str]:
    """Start `source` with `needs`, beside Kafka's jars, and pipes. Raises: JavaMissing."""
    try:
        java = find_java()
        class_path = resolve_class_path((*kafka_lock(), *needs))
    except KafkaUnavailable as error:
        raise JavaMissing(str(error)) from error
    if not (java.resolve().parent / "javac").exists():
        raise JavaMissing(f"{java} has no compiler beside it: a JDK is needed")
    return subprocess.Popen(
        [str(java), *JVM_ARGS, "-cp", class_path, str(SOURCES / source), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def stop_java(process: subprocess.Popen[str]) -> None:
    """End it: its stdin closes, then a signal."""
    if process.stdin is not None:
        process.stdin.close()
    process.terminate()
    process.wait(30)
    if process.stdout is not None:
        process.stdout.close()
