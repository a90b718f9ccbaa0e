"""pipeline/arrow_files.py: Arrow's clients reach what Hadoop's do, or are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from keylane.errors import ConfigInvalid, StorageFailed
from keylane.pipeline.arrow_files import (
    WorkerFiles,
    azure_arguments,
    gcs_arguments,
    s3_arguments,
)

AWS = "software.amazon.awssdk.auth.credentials."
S3A = "org.apache.hadoop.fs.s3a."
NOTHING: dict[str, str] = {}
KEYS = {"fs.s3a.access.key": "a", "fs.s3a.secret.key": "s"}


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({}, {"scheme": "https"}),
        ({"fs.s3a.endpoint.region": "eu-west-1"}, {"scheme": "https", "region": "eu-west-1"}),
        (
            {**KEYS, "fs.s3a.endpoint": "http://minio:9000/", "fs.s3a.path.style.access": "true"},
            {
                "access_key": "a",
                "secret_key": "s",
                "session_token": None,
                "scheme": "http",
                "endpoint_override": "minio:9000",
                "force_virtual_addressing": False,
                "region": "us-east-1",
            },
        ),
        (
            {
                "fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com",
                "fs.s3a.aws.credentials.provider": f"{AWS}DefaultCredentialsProvider",
                **KEYS,  # of no provider that is named
            },
            {
                "scheme": "https",
                "endpoint_override": "s3.eu-central-1.amazonaws.com",
                "force_virtual_addressing": True,
                "region": "eu-central-1",
            },
        ),
        (
            {
                "fs.s3a.connection.ssl.enabled": "false",
                "fs.s3a.aws.credentials.provider": f"{S3A}AnonymousAWSCredentialsProvider",
            },
            {"scheme": "http", "anonymous": True},
        ),
        (
            {
                **KEYS,
                "fs.s3a.session.token": "t",
                "fs.s3a.aws.credentials.provider": f"\n{S3A}TemporaryAWSCredentialsProvider,\n"
                f" {S3A}auth.IAMInstanceCredentialsProvider\n",
            },
            {"access_key": "a", "secret_key": "s", "session_token": "t", "scheme": "https"},
        ),
    ],
)
def test_s3_is_reached_as_hadoop_reaches_it(
    settings: dict[str, str], arguments: dict[str, Any]
) -> None:
    """Endpoint, style of addresses, region, keys; without keys, the chain of the client."""
    assert s3_arguments(settings.get) == arguments


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"fs.s3a.encryption.algorithm": "SSE-KMS"}, "fs.s3a.encryption.algorithm=SSE-KMS: "),
        ({"fs.s3a.proxy.host": "proxy"}, "fs.s3a.proxy.host: "),
        (
            {"fs.s3a.aws.credentials.provider": f"{S3A}auth.AssumedRoleCredentialProvider"},
            "fs.s3a.aws.credentials.provider=AssumedRoleCredentialProvider: ",
        ),
    ],
)
def test_settings_that_arrow_cannot_follow_are_refused(settings: dict[str, str], text: str) -> None:
    """Another way in, or states that are not encrypted as asked, would be worse than an error."""
    with pytest.raises(ConfigInvalid, match=f"{text}for states, give LaneFold a `filesystem`"):
        s3_arguments(settings.get)


def test_google_and_azure_take_what_their_clients_find_or_one_key() -> None:
    """Other ways of login are refused."""
    host = "acc.dfs.core.windows.net"
    kind = f"fs.azure.account.auth.type.{host}"

    assert gcs_arguments(NOTHING.get) == {}
    assert gcs_arguments({"fs.gs.auth.type": "UNAUTHENTICATED"}.get) == {"anonymous": True}
    assert azure_arguments(NOTHING.get, host) == {"account_name": "acc"}
    assert azure_arguments({f"fs.azure.account.key.{host}": "k"}.get, host) == {
        "account_name": "acc",
        "account_key": "k",
    }
    with pytest.raises(ConfigInvalid, match=r"fs.gs.auth.type=SERVICE_ACCOUNT_JSON_KEYFILE"):
        gcs_arguments({"fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE"}.get)
    with pytest.raises(ConfigInvalid, match=r"fs.azure.account.auth.type=OAuth"):
        azure_arguments({kind: "OAuth"}.get, host)


@pytest.mark.parametrize(("is_store", "is_local"), [(True, False), (False, True), (False, False)])
def test_files_are_whole_replaced_and_bounded(
    tmp_path: Path, is_store: bool, is_local: bool
) -> None:
    """As objects, as local files, and where a rename goes over no file."""
    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    (tmp_path / "f" / "a").mkdir(parents=True)
    files = WorkerFiles("x://f", system, "f", is_store, is_local)
    absent = files.read("a/x", 3), WorkerFiles("x://g", system, "g", True, False).names()
    files.write("a/x", b"one")
    files.write("a/x", pa.py_buffer(b"two"))

    found = files.read("a/x", 3), files.names()
    with pytest.raises(StorageFailed, match="x://f/a/x: larger than 2 bytes"):
        files.read("a/x", 2)
    files.delete("a/x")
    files.delete("a/x")

    assert absent == (None, set())
    assert found == (b"two", {"a/x"})
    assert files.names() == set()
    with pytest.raises(StorageFailed, match="x://f/a/y: "):
        files.read_table("a/y", lambda file: file)
