"""Folders of an S3 server, through Hadoop inside Spark's JVM."""

from __future__ import annotations

from pyspark.sql import SparkSession

from keylane.pipeline.storage import open_folder
from tests.spark.s3 import S3Server


def test_a_folder_of_a_bucket(spark: SparkSession, s3: S3Server) -> None:
    """A file is whole as soon as it is there, is replaced, and is gone when it is removed."""
    uri = s3.bucket()
    folder = open_folder(f"{uri}/a/b", spark)
    folder.write("x", b"one")
    folder.write("x", b"two")

    found = folder.read("x", 3), folder.read("y", 3), folder.names(), s3.keys(f"{uri}/a")
    folder.delete("x")

    assert found == (b"two", None, {"x"}, {"b/x"})
    assert folder.names() == set()
