"""The four jars by which Spark reads Kafka, from Maven, once.

In:    the version of pyspark; a lock of coordinates and sha256 sums.  Out: paths of jars.
Next:  `job` hands them to Spark.
Shell: jgo (network on the first run only), the local Maven repository, a file in the cache.

First choice is the connector of pyspark's own version, as Spark releases the two together. Where
no repository has it, the locked set is taken, which ran with every pyspark that the extra allows
(SPARK section 1); everything else that the connector names is part of pyspark already. The choice
is remembered with the sums of the files, so that later sessions get the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from keylane.embedded.resolve import (
    Progress,
    cache_folder,
    fetch_jar,
    hold_lock,
    print_progress,
    user_repositories,
)
from keylane.errors import SparkUnavailable

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
WANTED: Final = frozenset(
    {
        CONNECTOR,
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13",
        "org.apache.kafka:kafka-clients",
        "org.apache.commons:commons-pool2",
    }
)
"""What of the connector's dependencies pyspark does not bring."""


@dataclass(frozen=True, slots=True)
class Jar:
    """A file from Maven that was checked: `coordinates` are group:artifact:version."""

    coordinates: str
    sha256: str
    path: Path


def resolve_jars(
    pyspark_version: str, *, progress: Progress = print_progress, refresh: bool = False
) -> list[Jar]:
    """The jars for this pyspark; some seconds once, a few ms from then on.

    `refresh` looks again for the connector of pyspark's own version.

    Raises:
        SparkUnavailable: the repository cannot be reached or lacks a file, or a file is not the
            one that the lock names.
    """
    listing = cache_folder() / f"spark-jars-{pyspark_version}.json"
    jars = None if refresh else _read_listing(listing)
    if jars is None:
        listing.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(listing.with_suffix(".lock")):
            jars = None if refresh else _read_listing(listing)
            if jars is None:
                progress("keylane: resolving the Kafka connector of Spark (once)")
                jars = _resolve_matching(pyspark_version) or resolve_locked()
                progress("")
                _store(listing, jars)
    return jars


def resolve_locked() -> list[Jar]:
    """The set of the lock.

    Raises:
        SparkUnavailable: as `resolve_jars`.
    """
    jars = []
    for coordinates, sha256 in read_lock().items():
        jar = _fetch(coordinates)
        if jar.sha256 != sha256:
            raise SparkUnavailable(
                f"{coordinates}: {jar.path} has sha256 {jar.sha256}, locked is {sha256}:"
                " delete the file to fetch it again"
            )
        jars.append(jar)
    return jars


def read_lock() -> dict[str, str]:
    """sha256 by coordinates, of the set that is known to work."""
    text = files("keylane.pipeline").joinpath("jars.lock.json").read_text(encoding="utf-8")
    return {entry["coordinates"]: entry["sha256"] for entry in json.loads(text)["jars"]}


def copy_jars(jars: Sequence[Jar], folder: Path) -> None:
    """Copy the files into `folder`, for a machine or an image without a network."""
    folder.mkdir(parents=True, exist_ok=True)
    for jar in jars:
        shutil.copyfile(jar.path, folder / jar.path.name)


def _resolve_matching(pyspark_version: str) -> list[Jar] | None:
    """The connector of this version with what it needs; None where it cannot be had whole."""
    import jgo  # belongs to the extra, and takes 0.3 s, which only a first run has to pay

    endpoint = f"{CONNECTOR}:{pyspark_version}"
    try:
        artifacts = jgo.resolve(endpoint, repositories=user_repositories())
        found = {f"{item.groupId}:{item.artifactId}": item for item in artifacts}
        if not found.keys() >= WANTED:
            return None
        paths = {name: (found[name].version, fetch_jar(found[name])) for name in sorted(WANTED)}
    except (OSError, RuntimeError, ValueError):
        return None  # the locked set is tried next, and says what is wrong with the repository
    return [
        Jar(f"{name}:{version}", _sha256(path), path) for name, (version, path) in paths.items()
    ]


def _fetch(coordinates: str) -> Jar:
    try:
        from jgo.config import GlobalSettings
        from jgo.maven import MavenContext
    except ImportError:
        raise SparkUnavailable("jgo is not installed: pip install 'keylane[spark]'") from None

    group, artifact, version = coordinates.split(":")
    try:
        context = MavenContext(
            repo_cache=GlobalSettings.load().repo_cache,
            remote_repos=user_repositories() or None,  # None is Maven Central
        )
        path = fetch_jar(context.project(group, artifact).at_version(version).artifact())
    except (OSError, RuntimeError, ValueError) as error:  # requests' errors are OSErrors
        raise SparkUnavailable(f"cannot fetch {coordinates}: {error}") from error
    return Jar(coordinates, _sha256(path), path)


def _read_listing(listing: Path) -> list[Jar] | None:
    """The remembered jars, or None when the listing or one of the jars is gone or changed."""
    try:
        entries = json.loads(listing.read_text(encoding="utf-8"))
        jars = [Jar(item["coordinates"], item["sha256"], Path(item["path"])) for item in entries]
        same = all(_sha256(jar.path) == jar.sha256 for jar in jars)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return jars if jars and same else None


def _store(listing: Path, jars: Sequence[Jar]) -> None:
    partial = listing.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps([asdict(jar) | {"path": str(jar.path)} for jar in jars]))
    partial.replace(listing)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
