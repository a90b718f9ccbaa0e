"""Files that Python workers read and write: Arrow's file systems with Spark's own settings.

A Python worker has no JVM, and so no file system of Hadoop's. Arrow's clients are part of pyarrow,
which a worker has in any case. The driver makes one from the settings that Spark reads the same URI
with (`spark.hadoop.fs.s3a.*`, buckets' own before others), and sends it to the workers with the
task. Settings that Arrow's client cannot follow are refused by name, not passed over.

Source: Hadoop, "Connecting to an Amazon S3 Bucket" (endpoint, region, credential providers);
pyarrow.fs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from keylane.errors import ConfigInvalid, StorageFailed
from keylane.pipeline.storage import (
    OBJECT_STORES,
    Folder,
    HadoopFolder,
    one_line,
    scheme_of,
)

Setting = Callable[[str], str | None]
"""A setting of Hadoop's by name."""
KEY_PROVIDERS: Final = frozenset(
    {"SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider"}
)
ANONYMOUS: Final = frozenset({"AnonymousAWSCredentialsProvider", "AnonymousCredentialsProvider"})
CHAIN_PROVIDERS: Final = frozenset(
    {
        "ContainerCredentialsProvider",
        "DefaultCredentialsProvider",
        "EnvironmentVariableCredentialsProvider",
        "IAMInstanceCredentialsProvider",
        "InstanceProfileCredentialsProvider",
        "ProfileCredentialsProvider",
        "WebIdentityTokenFileCredentialsProvider",
    }
)
"""Providers of which the chain of Arrow's client has the like."""
AWS_HOST: Final = re.compile(r"s3[.-](?:dualstack\.)?([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
CENTRAL: Final = "s3.amazonaws.com"
CONNECT_S: Final = 10.0
REQUEST_S: Final = 60.0
ATTEMPTS: Final = 5
HINT: Final = "give LaneFold a `filesystem` of pyarrow.fs"


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """Small files of one folder; goes to workers with a task, secrets of its client included.

    All methods raise StorageFailed, which names the file.
    """

    place: str
    """As the user gave it, for messages."""
    system: Any
    """A pyarrow.fs.FileSystem."""
    path: str
    """The folder inside `system`."""
    is_store: bool
    """A file appears whole when it is closed; else it is written aside and renamed."""
    is_local: bool
    """Each machine has its own."""

    def names(self) -> set[str]:
        """Paths of all files below the folder, relative to it; empty when there is none."""
        with self._errors(""):
            selector = fs.FileSelector(self.path, recursive=True, allow_not_found=True)
            found = self.system.get_file_info(selector)
        start = len(self.path.rstrip("/")) + 1
        return {info.path[start:] for info in found if info.type == fs.FileType.File}

    def read(self, name: str, bytes_max: int) -> bytes | None:
        """Contents of a file, None when there is none; a larger one is an error."""
        path = f"{self.path}/{name}"
        with self._errors(name):
            info = self.system.get_file_info(path)
            if info.type == fs.FileType.NotFound:
                return None
            if info.size > bytes_max:
                raise StorageFailed(f"{self.place}/{name}: larger than {bytes_max:,} bytes")
            with self.system.open_input_stream(path) as stream:
                return bytes(stream.read())

    def read_table(self, name: str, load: Callable[[Any], pa.Table]) -> pa.Table:
        """Return what `load` makes of the open file."""
        with self._errors(name), self.system.open_input_file(f"{self.path}/{name}") as file:
            return load(file)

    def write(self, name: str, data: pa.Buffer | bytes) -> None:
        """Put a file in place of what was there, whole or not at all."""
        path = f"{self.path}/{name}"
        folder, _, last = path.rpartition("/")
        partial = path if self.is_store else f"{folder}/.{last}.tmp"
        with self._errors(name):
            if not self.is_store:
                self.system.create_dir(folder, recursive=True)
            # One write of all bytes: an object that is closed after half of them would be there.
            with self.system.open_output_stream(partial) as stream:
                stream.write(data)
            if not self.is_store:
                self._replace(partial, path)

    def delete(self, name: str) -> None:
        """Remove a file; nothing when there is none."""
        with self._errors(name):
            try:
                self.system.delete_file(f"{self.path}/{name}")
            except FileNotFoundError:
                return

    def _replace(self, partial: str, path: str) -> None:
        if not self.is_local and self.system.get_file_info(path).type != fs.FileType.NotFound:
            self.system.delete_file(path)  # HDFS renames over no file
        self.system.move(partial, path)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            place = f"{self.place}/{name}" if name else self.place
            raise StorageFailed(f"{place}: {one_line(str(error))}") from None


def worker_files(folder: Folder, filesystem: Any = None) -> WorkerFiles:
    """The files of a folder for Python workers; `filesystem` takes the place of the one made here.

    Raises:
        ConfigInvalid: Arrow has no client for the scheme, or a setting that it cannot follow.
        StorageFailed: Arrow's client cannot be made.
    """
    scheme = scheme_of(folder.uri)
    parts = urlsplit(folder.uri)
    path = f"{parts.netloc}{parts.path}".rstrip("/")
    if scheme is None:
        path = str(folder)
    elif scheme in {"abfs", "abfss"}:
        path = f"{parts.username or parts.netloc}{parts.path}".rstrip("/")
    elif scheme in {"hdfs", "viewfs"}:
        path = parts.path
    if filesystem is None:
        filesystem = _make_system(folder)
    is_store = scheme in OBJECT_STORES or scheme in {"abfs", "abfss"}
    return WorkerFiles(str(folder), filesystem, path, is_store, scheme is None)


def _make_system(folder: Folder) -> Any:
    parts = urlsplit(folder.uri)
    scheme = scheme_of(folder.uri)
    if not isinstance(folder, HadoopFolder):
        return fs.LocalFileSystem()
    try:
        if scheme == "s3a":
            arguments = s3_arguments(folder.settings)
            if "region" not in arguments:
                arguments["region"] = fs.resolve_s3_region(parts.netloc)
            retry = fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS)
            return fs.S3FileSystem(
                **arguments,
                connect_timeout=CONNECT_S,
                request_timeout=REQUEST_S,
                retry_strategy=retry,
            )
        if scheme == "gs":
            return fs.GcsFileSystem(**gcs_arguments(folder.settings))
        if scheme in {"abfs", "abfss"}:
            return fs.AzureFileSystem(**azure_arguments(folder.settings, parts.hostname or ""))
        if scheme in {"hdfs", "viewfs"}:
            return fs.HadoopFileSystem.from_uri(f"{scheme}://{parts.netloc}")
    except (OSError, ImportError, AttributeError, pa.ArrowException) as error:
        raise StorageFailed(f"{folder}: {one_line(str(error))}; {HINT}") from None
    raise ConfigInvalid(f"{folder}: Python workers cannot reach the scheme {scheme}; {HINT}")


def s3_arguments(setting: Setting) -> dict[str, Any]:
    """Arguments of pyarrow.fs.S3FileSystem that reach what S3A reaches with these settings.

    Without `region` in them it is the bucket's own, which Amazon has to be asked for.

    Raises:
        ConfigInvalid: names a setting that Arrow's client cannot follow.
    """
    algorithm = (setting("fs.s3a.encryption.algorithm") or "").upper()
    if algorithm not in {"", "AES256"}:
        raise ConfigInvalid(f"fs.s3a.encryption.algorithm={algorithm}: for states, {HINT}")
    if setting("fs.s3a.proxy.host"):
        raise ConfigInvalid(f"fs.s3a.proxy.host: for states, {HINT}")
    arguments: dict[str, Any] = {**_s3_credentials(setting), **_s3_endpoint(setting)}
    region = setting("fs.s3a.endpoint.region")
    if region:
        arguments["region"] = region
    return arguments


def _s3_endpoint(setting: Setting) -> dict[str, Any]:
    endpoint = setting("fs.s3a.endpoint") or CENTRAL
    is_tls = (setting("fs.s3a.connection.ssl.enabled") or "true").lower() != "false"
    if "://" in endpoint:
        scheme, _, endpoint = endpoint.partition("://")
    else:
        scheme = "https" if is_tls else "http"
    endpoint = endpoint.rstrip("/")
    if endpoint == CENTRAL:
        return {"scheme": scheme}
    is_path_style = (setting("fs.s3a.path.style.access") or "false").lower() == "true"
    found = AWS_HOST.fullmatch(endpoint)
    return {
        "scheme": scheme,
        "endpoint_override": endpoint,
        "force_virtual_addressing": not is_path_style,
        "region": found[1] if found is not None else "us-east-1",
    }


def _s3_credentials(setting: Setting) -> dict[str, Any]:
    listed = setting("fs.s3a.aws.credentials.provider") or ""
    names = [name.strip().rpartition(".")[2] for name in listed.split(",") if name.strip()]
    unknown = [name for name in names if name not in KEY_PROVIDERS | CHAIN_PROVIDERS | ANONYMOUS]
    if unknown:
        raise ConfigInvalid(f"fs.s3a.aws.credentials.provider={unknown[0]}: for states, {HINT}")
    access_key, secret_key = setting("fs.s3a.access.key"), setting("fs.s3a.secret.key")
    if access_key and secret_key and (not names or KEY_PROVIDERS & set(names)):
        return {
            "access_key": access_key,
            "secret_key": secret_key,
            "session_token": setting("fs.s3a.session.token"),
        }
    return {"anonymous": True} if names and set(names) <= ANONYMOUS else {}


def gcs_arguments(setting: Setting) -> dict[str, Any]:
    """Arguments of pyarrow.fs.GcsFileSystem. Raises: ConfigInvalid, as `s3_arguments`."""
    kind = (setting("fs.gs.auth.type") or "APPLICATION_DEFAULT").upper()
    if kind == "UNAUTHENTICATED":
        return {"anonymous": True}
    if kind not in {"APPLICATION_DEFAULT", "COMPUTE_ENGINE"}:
        raise ConfigInvalid(f"fs.gs.auth.type={kind}: for states, {HINT}")
    return {}


def azure_arguments(setting: Setting, host: str) -> dict[str, Any]:
    """Arguments of pyarrow.fs.AzureFileSystem; `host` is the one of a URI `abfss://c@HOST/`.

    Raises: ConfigInvalid, as `s3_arguments`.
    """
    account = {"account_name": host.partition(".")[0]}
    kind = setting(f"fs.azure.account.auth.type.{host}") or setting("fs.azure.account.auth.type")
    key = setting(f"fs.azure.account.key.{host}") or setting("fs.azure.account.key")
    if (kind or "SharedKey") == "SharedKey" and key:
        return {**account, "account_key": key}
    if kind is not None:
        raise ConfigInvalid(f"fs.azure.account.auth.type={kind}: for states, {HINT}")
    return account
