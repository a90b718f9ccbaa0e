"""One Spark for all tests of this folder, beside the real Kafka of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from keylane.pipeline.needs import find_jars
from keylane.pipeline.start import open_session
from tests.integration.conftest import (
    admin,
    broker,
    java,
    kafka,
    keylane,
    own_broker,
    pytest_unconfigure,
    shared_keylane,
    stage,
    topic,
)
from tests.spark.s3 import s3, s3_jars, s3_server

from .cluster import NoNamespaces, SparkCluster

__all__ = (
    "admin",
    "broker",
    "java",
    "kafka",
    "keylane",
    "own_broker",
    "pytest_unconfigure",
    "s3",
    "s3_server",
    "shared_keylane",
    "stage",
    "topic",
)

HERE = Path(__file__).parent
TIMEOUT_S = 300
"""A first query compiles and warms a JVM, on a machine that has two slow cores."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; pyspark leaves sockets to the garbage collector."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            unraisable = "ignore::pytest.PytestUnraisableExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings(unraisable))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session's Spark: two cores, four shuffle partitions, the jars of Kafka and of S3."""
    jars = [*(jar.path for jar in find_jars()), *s3_jars()]
    config = {"spark.driver.memory": "1g", "spark.jars": ",".join(map(str, jars))}
    session = open_session("keylane-tests", master="local[2]", config=config)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers that share no folder with this process."""
    cluster = SparkCluster(tmp_path_factory.getbasetemp())
    try:
        cluster.start()
    except NoNamespaces as error:
        pytest.skip(f"no mount namespaces: {error}")
    yield cluster
    cluster.stop()


@pytest.fixture
def breakable_cluster(spark_cluster: SparkCluster) -> Iterator[SparkCluster]:
    """The same cluster, for a test that kills parts of it: they are started again after it."""
    yield spark_cluster
    spark_cluster.start_missing()
