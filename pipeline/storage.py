"""Folders by path or URI: of this machine, or of any file system that Spark's Hadoop knows.

A path without a scheme, and `file:`, is a folder of the machine that the command runs on, whatever
Hadoop's default file system is: what a command writes there can be looked at where it was typed.
Every other URI (`s3a`, `gs`, `abfss`, `hdfs`) goes through Hadoop inside Spark's JVM, with Spark's
settings (`spark.hadoop.fs.s3a.endpoint`): the same client, credentials and paths as Spark's own
reads and writes.

Source: Hadoop's specification of file systems: a rename is atomic in HDFS, and a copy in object
stores, in which a file appears whole when it is closed.
"""

from __future__ import annotations

import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from keylane.errors import ConfigInvalid, StorageFailed
from keylane.files import replacing
from keylane.pipeline.job import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECT_STORES: Final = frozenset({"s3a", "s3", "s3n", "gs", "wasb", "wasbs", "oss", "cosn", "obs"})
"""Schemes of stores in which a file appears whole when it is closed, and a rename is a copy."""
MODULES: Final[Mapping[str, str]] = {
    "s3a": "hadoop-aws",
    "abfs": "hadoop-azure",
    "abfss": "hadoop-azure",
    "wasb": "hadoop-azure",
    "wasbs": "hadoop-azure",
    "gs": "hadoop-gcp",
    "oss": "hadoop-aliyun",
}
"""Artifacts of org.apache.hadoop that have the file systems which pyspark does not bring."""
PROBE: Final[Mapping[str, str]] = {
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "0",
    "fs.s3a.connection.establish.timeout": "15s",
    "fs.azure.io.retry.max.retries": "2",
    "fs.gs.http.max.retry": "2",
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.max.retries.on.timeouts": "1",
}
"""Patience of the first request. Hadoop's defaults go on for minutes where no server answers (S3A:
126 s for a refused connection, more than six minutes for one that hangs); with these 1 s and 30 s.
Everything after the first request has the user's settings."""
ABORTABLE: Final = "fs.capability.outputstream.abortable"
DENIED: Final = "java.nio.file.AccessDeniedException"
UNSUPPORTED: Final = "org.apache.hadoop.fs.UnsupportedFileSystemException"
MESSAGE_CHARS_MAX: Final = 400
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
Parsed = TypeVar("Parsed")


class FolderType(click.ParamType[str]):
    """A folder on the command line: a path, or a URI of a file system of Hadoop's."""

    name = "folder"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002  # click's interface
        ctx: click.Context | None,  # noqa: ARG002
    ) -> str:
        """Return the text without a slash at its end."""
        return str(value) if str(value) == "/" else str(value).rstrip("/")


FOLDER: Final = FolderType()


def scheme_of(text: str) -> str | None:
    """The scheme of a URI, lower case; None for a path and for `file:`, which mean this machine."""
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found is not None else None
    return None if scheme == "file" else scheme


def open_folder(text: str, spark: SparkSession | None = None) -> Folder:
    """The folder that a path or a URI names; it may not exist.

    Raises:
        ConfigInvalid: a URI without Spark, or of a scheme that Spark has no file system for.
        StorageFailed: the file system does not answer, or refuses; known after 30 s or so.
    """
    if scheme_of(text) is None:
        return LocalFolder(Path(local_path(text)))
    if spark is None:
        raise ConfigInvalid(f"{text}: only Spark reads URIs, and none runs")
    folder = HadoopFolder(spark, text)
    folder.probe()
    return folder


def split_file(text: str) -> tuple[str, str]:
    """Folder and name of a file that a path or a URI names."""
    if scheme_of(text) is None:
        path = Path(local_path(text))
        return str(path.parent), path.name
    folder, _, name = text.rpartition("/")
    return folder, name


def load_stored(
    text: str, parse: Callable[[bytes], Parsed], bytes_max: int, spark: SparkSession | None = None
) -> Parsed:
    """Return what `parse` makes of a file by path or URI, as `keylane.files.load_file`.

    Raises:
        ConfigInvalid: there is no such file, it is larger, or `parse` refuses it.
        StorageFailed: it cannot be read.
    """
    folder, name = split_file(text)
    data = open_folder(folder, spark).read(name, bytes_max)
    if data is None:
        raise ConfigInvalid(f"{text}: No such file or directory")
    try:
        return parse(data)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{text}: {error}") from None


def require_shared(spark: SparkSession, folder: Folder, option: str) -> None:
    """Refuse a folder of this machine that the workers of a cluster do not share with the driver.

    Tasks of all slots put a small file each into it, by Spark's own writer, and the driver counts
    them. A folder with a scheme is one for all; with a local master there is one machine.

    Raises:
        ConfigInvalid: names the option and the folder.
    """
    if not isinstance(folder, LocalFolder) or is_local(spark):
        return
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tasks = max(2, spark.sparkContext.defaultParallelism)
    marks = f".keylane-shared-{uuid.uuid4().hex}"
    advice = "give a folder that driver and workers share, such as s3a://BUCKET/FOLDER"
    try:
        spark.range(0, tasks, 1, tasks).write.parquet(f"{folder.uri}/{marks}")
        names = folder.child(marks).names()
    except (PySparkException, Py4JError) as error:
        cause = _java_cause(error)
        raise ConfigInvalid(
            f"{option} {folder}: workers cannot write to it ({cause}); {advice}"
        ) from None
    finally:
        folder.delete(marks)
    seen = sum(name.startswith("part-") for name in names)
    if seen != tasks:
        raise ConfigInvalid(
            f"{option} {folder}: of {tasks} files that workers wrote, {seen} are on this machine;"
            f" {advice}"
        )


def is_local(spark: SparkSession) -> bool:
    """Return whether all tasks run inside the driver's own process."""
    master = str(spark.sparkContext.master)
    return master == "local" or master.startswith("local[")


class Folder(ABC):
    """Small files of one folder, each read up to a bound, and written whole or not at all.

    All methods raise StorageFailed, which names the file, where the file system fails.
    """

    @property
    @abstractmethod
    def uri(self) -> str:
        """The folder as Spark's readers and writers take it, with a scheme."""

    @abstractmethod
    def child(self, name: str) -> Folder:
        """A folder inside."""

    @abstractmethod
    def read(self, name: str, bytes_max: int) -> bytes | None:
        """Contents of a file; None when there is none. A larger one raises ConfigInvalid."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Put a file in place of what was there; folders are made."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file or a folder with all that it holds; nothing when there is none."""

    @abstractmethod
    def names(self) -> set[str]:
        """Names of the files and folders inside; empty when the folder does not exist."""

    def __str__(self) -> str:
        return self.uri.removeprefix("file://")


@dataclass(frozen=True, slots=True)
class LocalFolder(Folder):
    """A folder of this machine. Needs no Spark."""

    path: Path

    @property
    def uri(self) -> str:
        """The path as `file:///`, unquoted: Hadoop takes a `%` for what it is."""
        return f"file://{self.path.absolute()}"

    def child(self, name: str) -> LocalFolder:
        """A folder inside."""
        return LocalFolder(self.path / name)

    def read(self, name: str, bytes_max: int) -> bytes | None:
        """Contents of a file, None when there is none."""
        path = self.path / name
        try:
            with path.open("rb") as file:
                return _bounded(str(path), file.read(bytes_max + 1), bytes_max)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"{path}: {error.strerror}") from None

    def write(self, name: str, data: bytes) -> None:
        """Put a file in place of what was there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with replacing(self.path / name) as partial:
                partial.write_bytes(data)
        except OSError as error:
            raise StorageFailed(f"{self.path / name}: {error.strerror}") from None

    def delete(self, name: str) -> None:
        """Remove a file or a folder."""
        import shutil

        path = self.path / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageFailed(f"{path}: {error.strerror}") from None

    def names(self) -> set[str]:
        """Names of what is inside."""
        try:
            return {path.name for path in self.path.iterdir()}
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StorageFailed(f"{self.path}: {error.strerror}") from None

    def __str__(self) -> str:
        return str(self.path)


class HadoopFolder(Folder):
    """A folder of a file system of Hadoop's, reached in Spark's JVM with the session's settings."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        """Find the file system; asks no server for more than its client needs to be made.

        Raises: ConfigInvalid, Spark has no file system for the scheme.
        """
        self._spark, self._uri = spark, uri.rstrip("/")
        self._jvm: Any = jvm_of(spark)
        session: Any = spark._jsparkSession  # noqa: SLF001
        self._conf: Any = session.sessionState().newHadoopConf()
        from py4j.protocol import Py4JError

        try:
            self._system: Any = self._path("").getFileSystem(self._conf)
        except Py4JError as error:
            raise ConfigInvalid(f"{uri}: {self._missing(error)}") from None

    @property
    def uri(self) -> str:
        """The URI as it was given."""
        return self._uri

    @property
    def settings(self) -> Callable[[str], str | None]:
        """Hadoop's settings of this file system by name, those of its bucket before others."""
        conf = self._system.getConf()

        def setting(name: str) -> str | None:
            found = conf.getPassword(name)  # looks into Hadoop's credential providers as well
            return None if found is None else "".join(found)

        return setting

    def probe(self) -> None:
        """Ask once for the folder, with little patience. Raises: StorageFailed."""
        conf = self._jvm.org.apache.hadoop.conf.Configuration(self._conf)
        bucket = self._path("").toUri().getAuthority()
        for name, value in PROBE.items():
            conf.set(name, value)
            conf.unset(name.replace("fs.s3a.", f"fs.s3a.bucket.{bucket}."))

        def ask() -> None:
            path = self._path("")
            system = self._jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), conf)
            try:
                system.exists(path)
            finally:
                system.close()

        self._run("", ask)

    def child(self, name: str) -> HadoopFolder:
        """A folder inside."""
        return HadoopFolder(self._spark, f"{self._uri}/{name}")

    def read(self, name: str, bytes_max: int) -> bytes | None:
        """Contents of a file, None when there is none."""
        path = self._path(name)

        def load() -> bytes:
            size = int(self._system.getFileStatus(path).getLen())
            if size > bytes_max:
                raise ConfigInvalid(f"{self._uri}/{name}: larger than {bytes_max:,} bytes")
            stream = self._system.open(path)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

        return cast("bytes | None", self._run(name, load, absent=None))

    def write(self, name: str, data: bytes) -> None:
        """Put a file in place of what was there."""
        path = self._path(name)
        is_store = scheme_of(self._uri) in OBJECT_STORES
        partial = path if is_store else self._path(f".{name}.{os.getpid()}.tmp")

        def store() -> None:
            stream = self._system.create(partial, True)
            try:
                stream.write(bytearray(data))
            except BaseException:
                # Closing is what makes the file: what was not written whole must not appear.
                if stream.hasCapability(ABORTABLE):
                    stream.abort()
                raise
            stream.close()
            if not is_store:
                self._replace(partial, path)

        self._run(name, store)

    def _replace(self, partial: Any, path: Any) -> None:
        options = self._jvm.org.apache.hadoop.fs.Options.Rename
        gateway: Any = self._spark.sparkContext._gateway  # noqa: SLF001
        replace = gateway.new_array(options, 1)
        replace[0] = options.OVERWRITE
        contexts = self._jvm.org.apache.hadoop.fs.FileContext
        from py4j.protocol import Py4JError

        try:
            context = contexts.getFileContext(path.toUri(), self._conf)
        except Py4JError as error:
            if UNSUPPORTED not in _java_classes(error):
                raise
            # A file system that knows no rename over a file, as Spark finds out as well.
            self._system.delete(path, False)
            if not self._system.rename(partial, path):
                raise StorageFailed(f"{path.toString()}: cannot be put in place") from None
        else:
            context.rename(partial, path, replace)

    def delete(self, name: str) -> None:
        """Remove a file or a folder."""
        self._run(name, lambda: self._system.delete(self._path(name), True))

    def names(self) -> set[str]:
        """Names of what is inside."""
        path = self._path("")
        found = self._run("", lambda: list(self._system.listStatus(path)), absent=[])
        return {str(status.getPath().getName()) for status in found}

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._uri}/{name}" if name else self._uri)

    def _run(self, name: str, work: Callable[[], Any], **absent: Any) -> Any:
        """Return what `work` does; `absent` is returned where there is no such file."""
        from py4j.protocol import Py4JError

        try:
            return work()
        except Py4JError as error:
            if absent and _java_classes(error)[:1] == ["java.io.FileNotFoundException"]:
                return absent["absent"]
            place = f"{self._uri}/{name}" if name else self._uri
            raise StorageFailed(f"{place}: {_java_cause(error)}") from None

    def _missing(self, error: Exception) -> str:
        scheme = scheme_of(self._uri) or ""
        classes = _java_classes(error)
        if "java.lang.ClassNotFoundException" in classes and scheme in MODULES:
            version = self._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            return (
                f"Spark's jars have no file system for {scheme}: add --conf spark.jars.packages="
                f"org.apache.hadoop:{MODULES[scheme]}:{version}"
            )
        if UNSUPPORTED in classes:
            other = "; Hadoop's scheme is s3a" if scheme in {"s3", "s3n"} else ""
            return f"Spark has no file system for the scheme {scheme}{other}"
        return _java_cause(error)


def _java_chain(error: Exception) -> list[Any]:
    """An error of Java and its causes, outermost first."""
    chain = []
    cause = getattr(error, "java_exception", None)
    while cause is not None:
        chain.append(cause)
        cause = cause.getCause()
    return chain


def _java_classes(error: Exception) -> list[str]:
    return [str(cause.getClass().getName()) for cause in _java_chain(error)]


def _java_cause(error: Exception) -> str:
    """One line: the innermost cause that says something; of a bare network error the one around."""
    chain = _java_chain(error)
    if not chain:
        return one_line(str(error) or type(error).__name__)
    names = _java_classes(error)
    is_bare = len(chain) > 1 and names[-1].startswith("java.net.")
    cause = chain[-2 if is_bare else -1]
    text = one_line(str(cause.getMessage() or cause.toString()))
    return f"access denied: {text}" if DENIED in names else text


def one_line(text: str) -> str:
    """The first line of a text that says something, up to MESSAGE_CHARS_MAX."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "no reason given")[:MESSAGE_CHARS_MAX]


def local_path(text: str) -> str:
    """The path that a text without a scheme, or with `file:`, names. Raises: ConfigInvalid."""
    if scheme_of(text) is not None or not text.lower().startswith("file:"):
        return text
    path = text[len("file:") :]
    if path.startswith("//") and not path.startswith("///"):
        raise ConfigInvalid(f"{text}: names another machine; a path of this one is file:///PATH")
    return re.sub("^/+", "/", path)


def _bounded(place: str, data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise ConfigInvalid(f"{place}: larger than {bytes_max:,} bytes")
    return data
