"""Arguments that the commands of `keylane spark` share, and what they mean to Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from keylane.errors import ConfigInvalid, JobFailed, SparkUnavailable, StorageFailed
from keylane.pipeline.job import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])
EXIT_BAD: Final = 2
"""Bad input, or nothing to start with."""
EXIT_SPARK: Final = 3
"""Spark, its cluster or its storage failed: the same command may work later."""


def kafka_options(command: Command) -> Command:
    """Add the options by which Kafka is reached; `--option` may be given several times."""
    bootstrap = click.option("--bootstrap", required=True, metavar="HOST:PORT", help="The brokers.")
    option = click.option(
        "--option",
        multiple=True,
        metavar="kafka.NAME=VALUE",
        help="An option of Spark's Kafka source, for TLS, SASL or kafka.isolation.level.",
    )
    return bootstrap(option(command))


def spark_options(command: Command) -> Command:
    """Add the options that say how the job runs."""
    master = click.option(
        "--master", default="local[*]", show_default=True, metavar="URL", help="Spark's."
    )
    return master(conf_option(command))


def conf_option(command: Command) -> Command:
    """Add Spark's settings alone, for a command that starts Spark only to reach a URI."""
    return click.option(
        "--conf",
        multiple=True,
        metavar="spark.NAME=VALUE",
        help="A Spark setting, such as spark.driver.memory=4g.",
    )(command)


def read_pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` texts as a dictionary.

    Raises:
        ConfigInvalid: one has no name or no equals sign; its value is not repeated.
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigInvalid(f"{flag} {name}: expected NAME=VALUE")
        pairs[name] = value
    return pairs


def fail(job_name: str, error: Exception, exit_code: int | None = None) -> int:
    """Write on one line of stderr why a job cannot go on; return its exit code."""
    sys.stderr.write(f"keylane spark {job_name}: {error}\n")
    if exit_code is not None:
        return exit_code
    is_spark = isinstance(error, JobFailed | SparkUnavailable | StorageFailed)
    return EXIT_SPARK if is_spark else EXIT_BAD


def start_session(app_name: str, *, master: str, conf: Sequence[str]) -> SparkSession:
    """The session that `spark_options` describe.

    Raises:
        ConfigInvalid: a `--conf` cannot be read.
        SparkUnavailable: as `open_session`.
    """
    return open_session(app_name, master=master, config=read_pairs("--conf", conf))
