"""An S3 server on this machine, and the settings by which Spark reads and writes it.

The server is moto's, in threads of the test's process. It knows one user, and checks the signature
of each request. `s3.bucket()` makes a bucket and gives it to the session's Spark. For a Spark that
a test starts there is `s3_server`, the same without the session's: it takes `settings`, and the
jars of `s3_jars()`.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from moto.core.authorization import enable_iam_authentication
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession

from keylane.embedded.jar_lock import FILE_NAME, parse_lock
from keylane.embedded.resolve import resolve_paths

LOCK: Final = Path(__file__).resolve().parent / FILE_NAME
S3A: Final = parse_lock(LOCK.read_text(encoding="utf-8"))
"""Hadoop's client of S3; `tools/lock_jars.py` writes the lock."""
REGION: Final = "us-east-1"
ALL: Final = {"Effect": "Allow", "Action": "*", "Resource": "*"}
POLICY: Final = json.dumps({"Version": "2012-10-17", "Statement": [ALL]})


def s3_jars() -> list[Path]:
    """The jars by which Spark reads and writes S3, 14 MB; fetched once."""
    return resolve_paths(S3A, "Hadoop's client of S3")


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where it is, and the keys of its user."""

    endpoint: str
    access_key: str
    secret_key: str
    spark: SparkSession | None = None

    @property
    def settings(self) -> Mapping[str, str]:
        """Spark settings, for a Spark that is started by the test (`--conf`)."""
        return {f"spark.hadoop.fs.s3a.{name}": value for name, value in self._options().items()}

    def bucket(self, **options: str) -> str:
        """URI of a new bucket, `s3a://name`; `options` are further ones, or others, of S3A's."""
        name = f"keylane-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        if self.spark is not None:
            self.let_in(name, **options)
        return f"s3a://{name}"

    def let_in(self, bucket: str, **options: str) -> None:
        """Let the session's Spark into a bucket. `_` stands for `.` in names of options."""
        assert self.spark is not None
        conf = self.spark.sparkContext._jsc.hadoopConfiguration()
        given = {name.replace("_", "."): value for name, value in options.items()}
        for name, value in (self._options() | given).items():
            conf.set(f"fs.s3a.bucket.{bucket}.{name}", value)

    def client(self) -> Any:
        """A client of Amazon's, by which a test looks into buckets."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )

    def keys(self, uri: str) -> set[str]:
        """Names of all objects below a URI, less the URI."""
        bucket, _, prefix = uri.removeprefix("s3a://").partition("/")
        prefix = f"{prefix}/" if prefix else ""
        found = self.client().list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())
        return {str(entry["Key"]).removeprefix(prefix) for entry in found}

    def _options(self) -> dict[str, str]:
        return {
            "endpoint": self.endpoint,
            "endpoint.region": REGION,
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": self.access_key,
            "secret.key": self.secret_key,
            # The defaults wait minutes for a server that is gone.
            "attempts.maximum": "1",
            "retry.limit": "1",
        }


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server for the session; takes 2 s."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line per request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    iam = boto3.client(
        "iam",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id="root",
        aws_secret_access_key="root",
    )
    iam.create_user(UserName="keylane")
    iam.put_user_policy(UserName="keylane", PolicyName="all", PolicyDocument=POLICY)
    key = iam.create_access_key(UserName="keylane")["AccessKey"]
    with enable_iam_authentication():
        yield S3Server(endpoint, key["AccessKeyId"], key["SecretAccessKey"])
    server.stop()


@pytest.fixture(scope="session")
def s3(s3_server: S3Server, spark: SparkSession) -> S3Server:
    """The server, whose buckets the session's Spark gets to know."""
    return replace(s3_server, spark=spark)
