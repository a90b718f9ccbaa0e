"""The Spark session: the one place where it is started, and where Spark's errors become ours."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from keylane.embedded.resolve import Progress
from keylane.errors import JobFailed, SparkUnavailable
from keylane.pipeline.needs import check_pyspark, find_jars, find_java_home

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[2]"
LOOPBACK: Final = "127.0.0.1"
SOURCE_OPTIONS: Final[Mapping[str, str]] = {
    # Kafka's default of 500 records per poll costs Spark another round for each 500.
    "kafka.max.poll.records": "20000",
}
"""Options of Spark's Kafka source that every job of ours reads with."""
PROGRESS_S: Final = 1.0
MESSAGE_CHARS_MAX: Final = 400
TRACEBACK: Final = "Traceback (most recent call last):"
OWN_ERROR: Final = re.compile(r"^keylane\.errors\.\w+: ")


def open_session(
    app_name: str,
    *,
    master: str = DEFAULT_MASTER,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or return this process's session. Use it as a context manager, or `stop()` it.

    `config` are Spark settings that win over ours; with `spark.jars` or `spark.jars.packages` no
    jars are resolved, and the sums of those are not checked. Spark's log is a file, which
    `log_path` names. Takes 5 to 10 s.

    Raises:
        SparkUnavailable: pyspark, Java or the jars are missing, or Spark does not start.
    """
    check_pyspark()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    settings = dict(config or {})
    if SparkSession.getActiveSession() is None:
        if not settings.keys() & {"spark.jars", "spark.jars.packages"}:
            jars = find_jars()
            settings["spark.jars"] = ",".join(str(jar.path) for jar in jars)
        settings = _default_settings(master) | settings
    # Workers must find what this process finds (Spark's default is `python3` on PATH).
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _launch_environment(master):
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            raise SparkUnavailable(f"Spark does not start: {first_line(error)}") from error


def log_path() -> Path:
    """The file that holds the log of this process's Spark."""
    return Path(tempfile.gettempdir()) / f"keylane-spark-{os.getpid()}.log"


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn what Spark raises inside into one line.

    Raises:
        JobFailed: a query failed; the text names `what`, the cause and Spark's log.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = f"{what}: {first_line(error)} (Spark's log: {log_path()})"
        raise JobFailed(text) from error


@contextmanager
def tracked(spark: SparkSession, what: str, progress: Progress) -> Iterator[None]:
    """Report how many tasks of the queries inside are done, about once a second.

    From Spark's status tracker; queries that run at the same time elsewhere are not counted.
    """
    context = spark.sparkContext
    group = f"keylane-{uuid.uuid4().hex}"
    context.setJobGroup(group, what)
    ended = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(context, group, what, progress, ended), name="keylane-progress"
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        progress("")
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # unsets it


def _watch(
    context: SparkContext, group: str, what: str, progress: Progress, ended: threading.Event
) -> None:
    tracker = context.statusTracker()
    reported = ""
    while not ended.wait(PROGRESS_S):
        done = total = 0
        for job_id in tracker.getJobIdsForGroup(group):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.stageIds if job else ():
                stage = tracker.getStageInfo(stage_id)
                # A stage that Spark skips, because its output is there, never starts.
                if stage is not None and stage.numActiveTasks + stage.numCompletedTasks:
                    done += stage.numCompletedTasks
                    total += stage.numTasks
        text = f"keylane: {what}: {done} of {total} tasks"
        if total and text != reported:
            progress(text)
            reported = text


def source_options(
    bootstrap: str, topic: str, options: Mapping[str, str], *, starting: str = "earliest"
) -> dict[str, str]:
    """Return options of Spark's Kafka source for one topic; `options` are further ones."""
    return {
        **SOURCE_OPTIONS,
        **options,
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": starting,
    }


def first_line(error: Exception) -> str:
    """The cause that an error of Spark starts with or comes from, without a stack trace."""
    java_error = getattr(error, "java_exception", None)
    text = str(error)
    while java_error is not None:
        text = str(java_error.toString())
        java_error = java_error.getCause()
    text = python_cause(str(error)) or python_cause(text) or text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:MESSAGE_CHARS_MAX]


def python_cause(text: str) -> str | None:
    """The line of the innermost Python traceback in a text that says what was raised.

    Spark's text of an error in a Python worker, or in foreachBatch, begins with the traceback.
    """
    _, _, rest = text.rpartition(TRACEBACK)
    ends = (line for line in rest.splitlines() if line and not line[0].isspace())
    line = next(ends, None) if rest != text else None
    return None if line is None else OWN_ERROR.sub("", line)


def _default_settings(master: str) -> dict[str, str]:
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    if master.startswith("local"):
        with as_file(files("keylane.pipeline").joinpath("log4j2.properties")) as logging:
            settings["spark.driver.extraJavaOptions"] = (
                f'"-Dlog4j2.configurationFile={logging.as_uri()}"'
                f' "-Dkeylane.spark.log={log_path()}"'
            )
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = LOOPBACK
        # 200, Spark's default, is for clusters: here each partition costs more than it holds.
        settings["spark.sql.shuffle.partitions"] = "4"
    return settings


@contextmanager
def _launch_environment(master: str) -> Iterator[None]:
    """JAVA_HOME, and for a local master the loopback address, while Spark starts."""
    wanted = {"JAVA_HOME": str(find_java_home())}
    if master.startswith("local"):
        wanted["SPARK_LOCAL_IP"] = LOOPBACK
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
