"""Arguments that the commands of `keylane spark` share, and what they mean to Spark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from keylane.errors import ConfigInvalid
from keylane.pipeline.job import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_BAD: Final = 2
"""Bad input, or nothing to start with."""


def add_kafka_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments by which Kafka is reached; `--option` may be given several times."""
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="the brokers")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="kafka.NAME=VALUE",
        help="an option of Spark's Kafka source, for TLS, SASL or kafka.isolation.level",
    )


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how the job runs."""
    parser.add_argument("--master", default="local[*]", help="Spark's (default: %(default)s)")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="spark.NAME=VALUE",
        help="a Spark setting, such as spark.driver.memory=4g",
    )


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


def fail(job_name: str, error: Exception, exit_code: int = EXIT_BAD) -> int:
    """Write on one line of stderr why a job cannot go on; return its exit code."""
    sys.stderr.write(f"keylane spark {job_name}: {error}\n")
    return exit_code


def start_session(app_name: str, args: argparse.Namespace) -> SparkSession:
    """The session that `add_spark_arguments` describes.

    Raises:
        ConfigInvalid: a `--conf` cannot be read.
        SparkUnavailable: as `open_session`.
    """
    settings = read_pairs("--conf", args.conf)
    return open_session(app_name, master=args.master, config=settings)
