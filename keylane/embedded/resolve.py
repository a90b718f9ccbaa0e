"""Get Kafka's jars from Maven, once, and remember the class path.

In:    coordinates.  Out: a class path string whose files exist.
Next:  `node` and `tools` hand it to Java.
Shell: jgo (network on the first run only), the local Maven repository, a file in the cache.

The jars stay in the local Maven repository that jgo and Maven share (`~/.m2/repository`, or
M2_REPO). Where they come from is the user's own setting: a mirror of Maven Central in Maven's
settings file, else jgo's default, plus the repositories of jgo's settings.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree

from keylane.errors import KafkaUnavailable

if TYPE_CHECKING:
    from jgo.maven import Artifact

KAFKA_VERSION: Final = "4.3.1"

COORDINATES: Final = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
"""The broker, its command line tools, and a log that goes to stderr. slf4j-simple has to have
the version of the slf4j-api that Kafka brings."""

UNUSED_GROUPS: Final = (
    "io.swagger",
    "jakarta.",
    "javax.",
    "com.fasterxml.jackson.jakarta",
    "com.fasterxml.jackson.module",
    "com.sun.activation",
    "io.github.classgraph",
    "org.codehaus.plexus",
    "org.eclipse.jetty",
    "org.glassfish",
    "org.javassist",
)
"""What only Kafka Connect needs: kafka-tools depends on it for one tool about Connect plugins."""

DOWNLOAD_THREADS: Final = 6

Progress = Callable[[str], None]


def print_progress(text: str) -> None:
    """Show one progress line on stderr; an empty text ends the line."""
    end = "\r" if sys.stderr.isatty() and text else "\n"
    if text or sys.stderr.isatty():
        sys.stderr.write(f"{text:<78}{end}")
        sys.stderr.flush()


def cache_folder() -> Path:
    """keylane's folder in the user's cache directory (XDG_CACHE_HOME, else ~/.cache)."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "keylane"


def resolve_class_path(
    coordinates: Sequence[str] = COORDINATES, *, progress: Progress = print_progress
) -> str:
    """Class path of `coordinates` and all they need; 10-20 s once, a few ms from then on.

    Safe to call from many processes at a time: one resolves, the others wait for it.

    Raises:
        KafkaUnavailable: Maven Central (or the mirror) cannot be reached, or lacks a file.
    """
    name = hashlib.sha256("+".join(coordinates).encode()).hexdigest()[:16]
    listing = cache_folder() / f"class-path-{name}.json"
    jars = _read_listing(listing)
    if jars is None:
        listing.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(listing.with_suffix(".lock")):
            jars = _read_listing(listing) or _resolve_and_store(coordinates, listing, progress)
    return os.pathsep.join(jars)


def _read_listing(listing: Path) -> list[str] | None:
    """The remembered jars, or None when the listing or one of the jars is gone."""
    try:
        jars: list[str] = json.loads(listing.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return jars if jars and all(map(os.path.exists, jars)) else None


def _resolve_and_store(coordinates: Sequence[str], listing: Path, progress: Progress) -> list[str]:
    import jgo  # takes 0.3 s, which only a first run has to pay

    progress(f"keylane: resolving Kafka {KAFKA_VERSION} (once)")
    try:
        artifacts = jgo.resolve("+".join(coordinates), repositories=user_repositories())
        wanted = [item for item in artifacts if not item.groupId.startswith(UNUSED_GROUPS)]
        jars = _download(wanted, progress)
    except (OSError, RuntimeError, ValueError) as error:  # requests' errors are OSErrors
        raise KafkaUnavailable(f"cannot resolve {' '.join(coordinates)}: {error}") from error
    partial = listing.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps(jars))
    partial.replace(listing)
    return jars


def _download(artifacts: Sequence[Artifact], progress: Progress) -> list[str]:
    """Fetch what the local repository lacks; paths in the order of `artifacts`."""
    with ThreadPoolExecutor(DOWNLOAD_THREADS) as pool:
        tasks = [pool.submit(fetch_jar, artifact) for artifact in artifacts]
        for done_count, task in enumerate(as_completed(tasks), start=1):
            task.result()
            if done_count % 10 == 0 or done_count == len(tasks):
                progress(f"keylane: Kafka {KAFKA_VERSION}: {done_count} of {len(tasks)} files")
    progress("")
    return [str(task.result()) for task in tasks]


def fetch_jar(artifact: Artifact) -> Path:
    """Path of the jar. A download that was cut leaves a part under the final name: try again.

    Raises:
        RuntimeError: no repository has it, or what came is no jar.
    """
    path = _jar_path(artifact)
    if zipfile.is_zipfile(path):
        return path
    path.unlink()
    path = _jar_path(artifact)
    if not zipfile.is_zipfile(path):
        raise RuntimeError(f"{path} is not a jar")
    return path


def _jar_path(artifact: Artifact) -> Path:
    path = artifact.resolve()
    if path is None:
        raise RuntimeError(f"{artifact} was not found")
    return Path(path)


def user_repositories() -> dict[str, str]:
    """Repositories of the user: those of jgo's settings, and a mirror of Maven Central."""
    from jgo.config import GlobalSettings

    repositories = dict(GlobalSettings.load().repositories)
    settings = Path.home() / ".m2" / "settings.xml"
    if settings.exists():
        mirror = read_central_mirror(settings.read_text())
        if mirror is not None:
            repositories["central"] = mirror
    return repositories


def read_central_mirror(settings_xml: str) -> str | None:
    """URL of the first mirror of Maven Central in a Maven settings file; None if there is none.

    Source: Maven, "Using Mirrors for Repositories": `mirrorOf` is a comma-separated list, where
    `*` and `external:*` name every remote repository and `!id` takes one out.
    """
    for mirror in ElementTree.fromstring(settings_xml).iter():
        if mirror.tag.rpartition("}")[2] != "mirror":
            continue
        fields = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in mirror}
        named = {part.strip() for part in fields.get("mirrorOf", "").split(",")}
        if named & {"*", "central", "external:*"} and "!central" not in named:
            return fields.get("url")
    return None


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; the system drops it when a holder dies."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
