"""The four jars by which Spark reads Kafka, from Maven, once; their sums are checked each time.

One set for every pyspark that the extra allows: it ran with each of them. Everything else that the
connector names is part of pyspark already. Which jars are taken never depends on what a repository
has; to use others, set `spark.jars`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from keylane.embedded.jar_lock import LockedJar, read_lock
from keylane.embedded.resolve import Progress, print_progress, resolve_paths
from keylane.errors import KafkaUnavailable, SparkUnavailable

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


def resolve_jars(*, progress: Progress = print_progress) -> list[Jar]:
    """The jars of the lock; some seconds once, a few ms from then on.

    Raises:
        SparkUnavailable: the repository cannot be reached or lacks a file, or a file is not the
            one that the lock names.
    """
    jars = spark_lock()
    try:
        paths = resolve_paths(jars, "the Kafka connector of Spark", progress=progress)
    except KafkaUnavailable as error:
        raise SparkUnavailable(str(error)) from None
    return [Jar(jar.coordinates, jar.sha256, path) for jar, path in zip(jars, paths, strict=True)]


def copy_jars(jars: Sequence[Jar], folder: Path) -> None:
    """Copy the files into `folder`, for a machine or an image without a network."""
    folder.mkdir(parents=True, exist_ok=True)
    for jar in jars:
        shutil.copyfile(jar.path, folder / jar.path.name)
