"""Small Java programs of the benchmark: stock Java consumers, share groups, parallel-consumer.

In:    a file of `bench/peers/java`, coordinates of what it needs.  Out: a process that is talked
       to in lines.
Shell: child processes. Java compiles the single file when it starts it (JEP 330), so a JDK is
       needed; a machine without one leaves these rows out.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from keylane.embedded.java import find_java
from keylane.embedded.resolve import KAFKA_VERSION, resolve_class_path
from keylane.errors import KafkaUnavailable

SOURCES: Final = Path(__file__).resolve().parent / "java"
CLIENTS: Final = (f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",)
LOGGER: Final = ("org.slf4j:slf4j-simple:1.7.36",)
PARALLEL_CONSUMER_VERSION: Final = "0.5.3.3"
PARALLEL_CONSUMER: Final = (
    f"io.confluent.parallelconsumer:parallel-consumer-core:{PARALLEL_CONSUMER_VERSION}",
)
JVM_ARGS: Final = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


class JavaMissing(Exception):
    """This machine cannot run the program, and why."""


def start_java(source: str, *args: str, needs: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start `source` with pipes on stdin and stdout. Raises: JavaMissing."""
    try:
        java = find_java()
        class_path = resolve_class_path((*needs, *CLIENTS, *LOGGER))
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
