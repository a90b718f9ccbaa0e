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
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from keylane.errors import ConfigInvalid, StorageFailed
from keylane.files import replacing
from keylane.pipeline.job import first_line, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECT_STORES: Final = frozenset({"s3a", "s3", "s3n", "gs", "wasb", "wasbs", "oss", "cosn", "obs"})
"""Schemes of stores in which a file appears whole when it is closed, and a rename is a copy."""
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


class FolderType(click.ParamType[str]):
    """A folder on the command line: a path, or a URI of a file system of Hadoop's."""

    name = "folder"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002  # click's interface
        ctx: click.Context | None,  # noqa: ARG002
    ) -> str:
        """Return the text, an absolute path of this machine where it names no scheme."""
        return str(Path(value)) if scheme_of(str(value)) is None else str(value).rstrip("/")


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
    """
    if scheme_of(text) is None:
        return LocalFolder(Path(_local_path(text)))
    if spark is None:
        raise ConfigInvalid(f"{text}: only Spark reads URIs, and none runs")
    return HadoopFolder(spark, text)


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
        """The path as `file:///`."""
        return self.path.absolute().as_uri()

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
    """A folder of a file system of Hadoop's, reached in Spark's JVM."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark, self._uri = spark, uri.rstrip("/")
        self._jvm: Any = jvm_of(spark)
        context: Any = spark.sparkContext
        self._conf: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001
        path = self._path("")
        from py4j.protocol import Py4JError

        try:
            self._system: Any = path.getFileSystem(self._conf)
        except Py4JError as error:
            raise ConfigInvalid(f"{uri}: {first_line(error)}") from None

    @property
    def uri(self) -> str:
        """The URI as it was given."""
        return self._uri

    def child(self, name: str) -> HadoopFolder:
        """A folder inside."""
        return HadoopFolder(self._spark, f"{self._uri}/{name}")

    def read(self, name: str, bytes_max: int) -> bytes | None:
        """Contents of a file, None when there is none."""
        path = self._path(name)

        def load() -> bytes | None:
            if not self._system.exists(path):
                return None
            size = int(self._system.getFileStatus(path).getLen())
            if size > bytes_max:
                raise ConfigInvalid(f"{self._uri}/{name}: larger than {bytes_max:,} bytes")
            stream = self._system.open(path)
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

        return cast("bytes | None", self._run(name, load))

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
                if stream.hasCapability("abortable"):
                    stream.abort()
                raise
            stream.close()
            if not is_store:
                options = self._jvm.org.apache.hadoop.fs.Options.Rename
                replace = self._spark.sparkContext._gateway.new_array(options, 1)  # type: ignore[union-attr]  # noqa: SLF001
                replace[0] = options.OVERWRITE
                context = self._jvm.org.apache.hadoop.fs.FileContext
                context.getFileContext(path.toUri(), self._conf).rename(partial, path, replace)

        self._run(name, store)

    def delete(self, name: str) -> None:
        """Remove a file or a folder."""
        self._run(name, lambda: self._system.delete(self._path(name), True))

    def names(self) -> set[str]:
        """Names of what is inside."""
        path = self._path("")

        def look() -> set[str]:
            if not self._system.exists(path):
                return set()
            return {str(status.getPath().getName()) for status in self._system.listStatus(path)}

        return cast("set[str]", self._run("", look))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._uri}/{name}" if name else self._uri)

    def _run(self, name: str, work: Any) -> Any:
        from py4j.protocol import Py4JError

        try:
            return work()
        except Py4JError as error:
            place = f"{self._uri}/{name}" if name else self._uri
            raise StorageFailed(f"{place}: {first_line(error)}") from None


def _local_path(text: str) -> str:
    if not text.lower().startswith("file:"):
        return text
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(text).path)


def _bounded(place: str, data: bytes, bytes_max: int) -> bytes:
    if len(data) > bytes_max:
        raise ConfigInvalid(f"{place}: larger than {bytes_max:,} bytes")
    return data
