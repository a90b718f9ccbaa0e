"""Arguments that the commands of `keylane spark` share, and what they mean to Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from keylane.assignor.range_plan import PLAN_BYTES_MAX, RangePlan, read_plan
from keylane.embedded.resolve import print_progress
from keylane.errors import ConfigInvalid, JobFailed, SparkUnavailable, StorageFailed
from keylane.files import load_file
from keylane.pipeline.job import spark_errors, starvation_reported
from keylane.pipeline.start import open_or_join
from keylane.pipeline.storage import FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Command = TypeVar("Command", bound=Callable[..., Any])
EXIT_BAD: Final = 2
"""Bad input, or nothing to start with."""
EXIT_SPARK: Final = 3
"""Spark, its cluster or its storage failed: the same command may work later."""
EXIT_INTERRUPTED: Final = 130
"""As a shell reports it: 128 + SIGINT."""
PLACE: Final = "Earliest, latest, a time (2026-11-21T08:00:00Z) or offsets (0:100,1:250)."


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


def range_options(command: Command) -> Command:
    """Add the places between which records are taken, as `topic_range.find_range` has them."""
    start = click.option("--from", "start", default="earliest", metavar="PLACE", help=PLACE)
    end = click.option(
        "--to", "end", default="latest", metavar="PLACE", help="The same; exclusive."
    )
    return start(end(command))


def out_option(command: Command) -> Command:
    """Add the folder that a command needs for what it finds."""
    return click.option(
        "--out",
        type=FOLDER,
        required=True,
        metavar="DIR",
        help="Folder for what is written, or a URI.",
    )(command)


def spark_options(command: Command) -> Command:
    """Add the options that say how the job runs."""
    master = click.option(
        "--master",
        metavar="URL",
        help="Spark's master; by default that of spark-submit or of Spark's configuration, else"
        " local[*].",
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


def load_plan(path: Path, topic: str) -> RangePlan:
    """The plan of a topic that `--plan` names.

    Raises:
        ConfigInvalid: it cannot be read, or is of another topic.
    """
    try:
        plan = load_file(path, read_plan, PLAN_BYTES_MAX)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"--plan {error}") from None
    if plan.topic != topic:
        raise ConfigInvalid(f"--plan {path}: is of topic {plan.topic}, not {topic}")
    return plan


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
    return end(f"keylane spark {job_name}", error, exit_code)


def end(program: str, error: Exception, exit_code: int | None = None) -> int:
    """Write one line that begins with the program's name; return the exit code of the error."""
    sys.stderr.write(f"{program}: {' '.join(str(error).split())}\n")
    if exit_code is not None:
        return exit_code
    is_spark = isinstance(error, JobFailed | SparkUnavailable | StorageFailed)
    return EXIT_SPARK if is_spark else EXIT_BAD


@contextmanager
def start_session(
    app_name: str, *, master: str | None, conf: Sequence[str]
) -> Iterator[SparkSession]:
    """The session that `spark_options` describe; stopped at the end, if it was started here.

    Whatever Spark raises inside leaves as one line. A cluster without free executors is reported.

    Raises:
        ConfigInvalid: a `--conf` cannot be read; and as `start.open_session`.
        SparkUnavailable: as `start.open_session`.
        JobFailed: Spark, its cluster or its JVM failed.
    """
    config = read_pairs("--conf", conf)
    try:
        with (
            open_or_join(app_name, master=master, config=config) as spark,
            spark_errors(),
            starvation_reported(spark, print_progress),
        ):
            yield spark
    except KeyboardInterrupt:
        sys.stderr.write("keylane: interrupted\n")
        raise
