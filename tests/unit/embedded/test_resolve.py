"""keylane/embedded/resolve.py and jar_lock.py: no jar is run whose sum is not in the lock."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from keylane.embedded import resolve
from keylane.embedded.jar_lock import LockedJar, dump_lock, parse_lock, read_lock
from keylane.embedded.resolve import (
    cache_folder,
    kafka_lock,
    read_central_mirror,
    resolve_class_path,
    resolve_paths,
)
from keylane.errors import KafkaUnavailable

SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors>
<mirror><id>other</id><mirrorOf>snapshots</mirrorOf><url>https://other.test/</url></mirror>
<mirror><id>ours</id><mirrorOf>{mirror_of}</mirrorOf><url>https://ours.test/</url></mirror>
</mirrors></settings>"""


@pytest.mark.parametrize(
    "mirror_of", ["central", "*", "external:*", "*,!snapshots", " a, central "]
)
def test_a_mirror_of_central_is_used(mirror_of: str) -> None:
    """Every way to name Central in `mirrorOf` gives the mirror's address."""
    assert read_central_mirror(SETTINGS.format(mirror_of=mirror_of)) == "https://ours.test/"


@pytest.mark.parametrize("mirror_of", ["snapshots", "*,!central", "", "centralized"])
def test_a_mirror_of_something_else_is_not(mirror_of: str) -> None:
    """A mirror that does not stand for Central leaves jgo's own default."""
    assert read_central_mirror(SETTINGS.format(mirror_of=mirror_of)) is None


def test_settings_without_mirrors_have_none() -> None:
    """An empty settings file decides nothing."""
    assert read_central_mirror("<settings/>") is None


def make_jar(path: Path, content: str) -> LockedJar:
    """A jar at `path`, and its lock."""
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("a.class", content)
    data = path.read_bytes()
    coordinates = f"test.jars:{path.stem}:1"
    return LockedJar(coordinates, hashlib.sha256(data).hexdigest(), len(data))


class Repository:
    """Files in place of Maven and of the local repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.fetched = folder, list[str]()
        self.jars = tuple(make_jar(folder / f"{name}.jar", name) for name in ("one", "two"))

    def path(self, jar: LockedJar) -> Path:
        return self.folder / f"{jar.coordinates.split(':')[1]}.jar"

    def fetch(self, jar: LockedJar, context: Any) -> Path:
        self.fetched.append(jar.coordinates)
        return self.path(jar)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Two jars that are what their lock says, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Repository(tmp_path)
    monkeypatch.setattr(resolve, "open_maven", lambda: None)
    monkeypatch.setattr(resolve, "_fetch", made.fetch)
    return made


def test_jars_are_fetched_once_and_checked_each_time(repository: Repository) -> None:
    """Paths are in the order of the lock; what the cache remembers is only where they are."""
    wanted = [repository.path(jar) for jar in repository.jars]

    first = resolve_class_path(repository.jars)
    second = resolve_class_path(repository.jars)

    assert first == second == os.pathsep.join(map(str, wanted))
    # Threads fetch them, in any order.
    assert sorted(repository.fetched) == [jar.coordinates for jar in repository.jars]


@pytest.mark.parametrize("is_known", [False, True], ids=["first start", "later start"])
def test_a_jar_with_another_sum_is_refused(repository: Repository, is_known: bool) -> None:
    """Whether it comes from a repository or lies in a cache; the error names both sums."""
    jar = repository.jars[1]
    if is_known:
        resolve_paths(repository.jars, "test")
    data = bytearray(repository.path(jar).read_bytes())
    data[38] ^= 1  # in the content: of the same size, and a zip file to every Python
    repository.path(jar).write_bytes(data)

    with pytest.raises(KafkaUnavailable) as caught:
        resolve_paths(repository.jars, "test")

    text = str(caught.value)
    assert zipfile.is_zipfile(repository.path(jar))
    assert jar.coordinates in text and str(repository.path(jar)) in text
    assert f"expected sha256 {jar.sha256}, got sha256 {hashlib.sha256(data).hexdigest()}" in text
    assert "Delete the file" in text


def test_a_jar_of_another_size_is_refused(repository: Repository) -> None:
    """Before it is read."""
    jar = repository.jars[0]
    with repository.path(jar).open("ab") as file:
        file.write(b"more")

    with pytest.raises(
        KafkaUnavailable, match=f"expected {jar.size_bytes} bytes, got {jar.size_bytes + 4} bytes"
    ):
        resolve_paths(repository.jars, "test")


def test_a_cache_that_names_another_file_is_not_believed(repository: Repository) -> None:
    """What it remembers can be written by others: the file's own sum counts."""
    resolve_paths(repository.jars, "test")
    listing = cache_folder() / "jars.json"
    stranger = repository.folder / "stranger.jar"
    make_jar(stranger, "oops")
    known = dict.fromkeys(json.loads(listing.read_text(encoding="utf-8")), str(stranger))
    listing.write_text(json.dumps(known), encoding="utf-8")

    with pytest.raises(KafkaUnavailable, match="is not run"):
        resolve_paths(repository.jars, "test")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": 1}', "{", '"x"'])
def test_a_damaged_cache_is_made_anew(repository: Repository, text: str) -> None:
    """As if nothing had been fetched."""
    cache_folder().mkdir(parents=True)
    (cache_folder() / "jars.json").write_text(text, encoding="utf-8")

    paths = resolve_paths(repository.jars, "test")

    assert paths == [repository.path(jar) for jar in repository.jars]


def test_a_jar_that_is_gone_is_fetched_again(repository: Repository) -> None:
    """A user may delete a file that was refused."""
    resolve_paths(repository.jars, "test")
    repository.path(repository.jars[0]).rename(repository.folder / "moved.jar")
    moved = repository.folder / "moved.jar"
    repository.path = lambda jar: (  # type: ignore[method-assign]
        moved if jar == repository.jars[0] else repository.folder / "two.jar"
    )

    paths = resolve_paths(repository.jars, "test")

    assert paths[0] == moved
    assert len(repository.fetched) == 4


def test_the_lock_is_read_back() -> None:
    """What is written is what is read; it names no address."""
    jars = kafka_lock()

    text = dump_lock(jars)

    assert parse_lock(text) == jars == read_lock("keylane.embedded")
    assert "://" not in text


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "abc"},
        {"sha256": "A" * 64},
        {"sha256": None},
        {"coordinates": "a:b"},
        {"coordinates": "a:b:../../c"},
        {"coordinates": "a/b:c:1"},
        {"size_bytes": 0},
        {"size_bytes": "12"},
        {"size_bytes": True},
    ],
    ids=str,
)
def test_an_entry_that_pins_nothing_is_refused(change: dict[str, Any]) -> None:
    """Coordinates of three parts, a whole sum, a size."""
    entry = {"coordinates": "a:b:1", "sha256": "0" * 64, "size_bytes": 12}
    document = {"format": "keylane-jars", "version": 2, "jars": [entry | change]}
    parse_lock(json.dumps(document | {"jars": [entry]}))

    with pytest.raises(ValueError, match="no lock of jars"):
        parse_lock(json.dumps(document))


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "keylane-jars", "version": 2}'])
def test_another_file_is_no_lock(text: str) -> None:
    """Its format and version stand in it, and it is not empty."""
    with pytest.raises(ValueError, match="no lock of jars"):
        parse_lock(text)


def test_a_file_that_another_process_writes_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """jgo asserts that no other process fetches into the same Maven repository."""

    def fetch(_artifact: object) -> Path:
        raise AssertionError

    monkeypatch.setattr(resolve, "fetch_jar", fetch)
    jar = LockedJar("org.apache.kafka:kafka-clients:4.3.1", "0" * 64, 1)

    with pytest.raises(
        KafkaUnavailable, match=r"kafka-clients:4.3.1: another process .* try again"
    ):
        resolve._fetch(jar, MagicMock())
