"""Get Kafka's jars from Maven, once, and check their sums at each start.

The jars stay in the local Maven repository that jgo and Maven share (`~/.m2/repository`, or
M2_REPO). Where they come from is the user's own setting: a mirror of Maven Central in Maven's
settings file, else jgo's default, plus the repositories of jgo's settings. None of these is
believed: which jars there are, and which bytes each has, stands in `jars.lock.json`.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree

from keylane.embedded.jar_lock import LockedJar, check_jar, read_lock
from keylane.errors import KafkaUnavailable
from keylane.files import replacing

if TYPE_CHECKING:
    from jgo.maven import Artifact, MavenContext

KAFKA_VERSION: Final = "4.3.1"

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


@cache
def kafka_lock() -> tuple[LockedJar, ...]:
    """Kafka's broker, its command line tools, and a log that goes to stderr, with all they need."""
    return read_lock("keylane.embedded")


def resolve_class_path(jars: Sequence[LockedJar] | None = None) -> str:
    """Class path of the locked `jars` (None: Kafka's); 5-10 s once, some 40 ms from then on.

    Raises:
        KafkaUnavailable: as `resolve_paths`.
    """
    jars = kafka_lock() if jars is None else jars
    return os.pathsep.join(map(str, resolve_paths(jars, f"Kafka {KAFKA_VERSION}")))


def resolve_paths(jars: Sequence[LockedJar], name: str) -> list[Path]:
    """The files of `jars`, each with the sum of its lock; `name` stands in progress lines.

    Safe to call from many processes at a time: one fetches, the others wait for it.

    Raises:
        KafkaUnavailable: Maven Central (or the mirror) cannot be reached, or lacks a file, or a
            file is not the one that the lock names.
    """
    listing = cache_folder() / "jars.json"
    paths = _known_paths(listing, jars)
    if paths is None:
        listing.parent.mkdir(parents=True, exist_ok=True)
        with hold_lock(listing.with_suffix(".lock")):
            paths = _known_paths(listing, jars)
            if paths is None:
                paths = _fetch_all(jars, name)
                _remember(listing, jars, paths)
    try:
        for jar, path in zip(jars, paths, strict=True):
            check_jar(jar, path)
    except OSError as error:
        raise KafkaUnavailable(f"cannot read a jar: {error}") from error
    return paths


def _known_paths(listing: Path, jars: Sequence[LockedJar]) -> list[Path] | None:
    """Return the last paths of the jars; None when one is gone. Their sums are checked as ever."""
    known = _read_listing(listing)
    paths = [Path(known.get(jar.sha256, "")) for jar in jars]
    return paths if all(path.is_file() for path in paths) else None


def _read_listing(listing: Path) -> dict[str, str]:
    """Paths of files by the sums that they should have."""
    try:
        entries = json.loads(listing.read_text(encoding="utf-8"))
        return {str(sha256): str(path) for sha256, path in entries.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _remember(listing: Path, jars: Sequence[LockedJar], paths: Sequence[Path]) -> None:
    known = _read_listing(listing)
    known |= {jar.sha256: str(path) for jar, path in zip(jars, paths, strict=True)}
    with replacing(listing) as partial:
        partial.write_text(json.dumps(known), encoding="utf-8")


def _fetch_all(jars: Sequence[LockedJar], name: str) -> list[Path]:
    """Fetch what the local repository lacks; paths in the order of `jars`."""
    print_progress(f"keylane: fetching {name} (once)")
    context = open_maven()
    with ThreadPoolExecutor(DOWNLOAD_THREADS) as pool:
        tasks = [pool.submit(_fetch, jar, context) for jar in jars]
        try:
            for done_count, task in enumerate(as_completed(tasks), start=1):
                task.result()
                if done_count % 10 == 0 or done_count == len(tasks):
                    print_progress(f"keylane: {name}: {done_count} of {len(tasks)} files")
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            print_progress("")
    return [task.result() for task in tasks]


def open_maven(repository: Path | None = None) -> MavenContext:
    """jgo with the repositories of the user, and the local one of the user or `repository`.

    Raises:
        KafkaUnavailable: jgo is not installed.
    """
    try:
        from jgo.config import GlobalSettings  # takes 0.3 s, which only a first run has to pay
        from jgo.constants import MAVEN_CENTRAL_URL
        from jgo.maven import MavenContext
    except ImportError:
        raise KafkaUnavailable("jgo is not installed: pip install 'keylane[demo]'") from None

    return MavenContext(
        repo_cache=repository or GlobalSettings.load().repo_cache,
        remote_repos={"central": MAVEN_CENTRAL_URL} | user_repositories(),
    )


def _fetch(jar: LockedJar, context: MavenContext) -> Path:
    group, artifact, version = jar.coordinates.split(":")
    try:
        return fetch_jar(context.project(group, artifact).at_version(version).artifact())
    except (OSError, RuntimeError, ValueError) as error:  # requests' errors are OSErrors
        raise KafkaUnavailable(f"cannot fetch {jar.coordinates}: {error}") from error
    except AssertionError as error:
        # jgo asserts that a file which it is about to write is still not there.
        raise KafkaUnavailable(
            f"cannot fetch {jar.coordinates}: another process writes it to the same Maven "
            "repository just now; try again"
        ) from error


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
