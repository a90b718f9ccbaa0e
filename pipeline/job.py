"""Parts that every job on Spark shares: errors on one line, progress, its JVM and log."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from keylane.embedded.resolve import Progress
from keylane.errors import ConfigInvalid, JobFailed
from keylane.pipeline.settings import NO_CONNECT, is_local

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

SOURCE_OPTIONS: Final[Mapping[str, str]] = {
    # Kafka's default of 500 records per poll costs Spark another round for each 500.
    "kafka.max.poll.records": "20000",
}
"""Options of Spark's Kafka source that every job of ours reads with."""
PROGRESS_S: Final = 1.0
STARVED_S: Final = 15.0
"""As long as Spark waits before it logs that a job has accepted no resources."""
STARVED_AGAIN_S: Final = 60.0
MESSAGE_CHARS_MAX: Final = 400
TRACEBACK: Final = "Traceback (most recent call last):"
OWN_ERROR: Final = re.compile(r"^keylane\.errors\.\w+: ")

STOPPED: Final = (
    "Cannot call methods on a stopped SparkContext",
    "Spark context stopped while waiting for backend",
    '"org.apache.spark.SparkContext.dagScheduler()" is null',
)
"""Errors in which a job finds its session stopped; none has the reason."""
JVM_GONE: Final = "Spark's JVM has ended"
SESSION_GONE: Final = "the cluster has removed this application, or its session was stopped"
SIGN_OF_NO_MEMORY: Final = "java.lang.OutOfMemoryError"
NO_MEMORY: Final = (
    "Spark's JVM here had no memory left: give it more, such as --conf spark.driver.memory=4g"
)
LOG_BYTES_READ: Final = 16 << 20
SIGN_OF_NO_CLASS: Final = "'JavaPackage' object is not callable"


def jvm_of(spark: SparkSession) -> Any:
    """The JVM of a session, in the way in which all of Spark's own Python reaches it.

    Raises:
        ConfigInvalid: it is a session of Spark Connect.
    """
    # A Connect session raises an AttributeError for it.
    if getattr(spark, "_jsparkSession", None) is None:
        raise ConfigInvalid(NO_CONNECT)
    return spark.sparkContext._jvm  # noqa: SLF001


def log_path() -> Path:
    """The file with the log of the JVM that this process has started."""
    return Path(tempfile.gettempdir()) / f"keylane-spark-{os.getpid()}.log"


@contextmanager
def spark_errors(what: str = "") -> Iterator[None]:
    """Turn what Spark raises inside into one line.

    Raises:
        JobFailed: a query failed; the text names `what`, the cause and Spark's log.
        KeyboardInterrupt: Ctrl-C made it fail: PySpark cancels all jobs first.
    """
    from py4j.protocol import Py4JError
    from pyarrow import ArrowException
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ArrowException, ConnectionError) as error:
        if _was_interrupted(error):
            raise KeyboardInterrupt from error
        raise JobFailed(_failure(what, error)) from error
    except TypeError as error:
        if SIGN_OF_NO_CLASS not in str(error):
            raise
        raise JobFailed(_failure(what, error)) from error


@contextmanager
def tracked(spark: SparkSession, what: str, progress: Progress) -> Iterator[None]:
    """Report how many tasks of the queries inside are done, about once a second.

    From Spark's status tracker; queries that run at the same time elsewhere are not counted.
    """
    context = spark.sparkContext
    group = f"keylane-{uuid.uuid4().hex}"
    context.setJobGroup(group, what)
    try:
        with _beside("keylane-progress", _watch, context, group, what, progress):
            yield
    finally:
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


def hold(frame: DataFrame, stack: ExitStack) -> DataFrame:
    """`frame`, computed once: on the disks of the executors, and again where one is lost.

    The end of `stack` releases it.
    """
    from pyspark import StorageLevel

    held = frame.persist(StorageLevel.DISK_ONLY)
    stack.callback(held.unpersist)
    return held


def first_line(error: BaseException) -> str:
    """The cause that an error of Spark starts with or comes from, without a stack trace."""
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, ConnectionError | Py4JNetworkError):
        return JVM_GONE
    java_error = getattr(error, "java_exception", None)
    text = shown = str(error)
    try:
        while java_error is not None:
            text = str(java_error.toString())
            java_error = java_error.getCause()
    except (ConnectionError, Py4JNetworkError):  # the JVM ends while it is asked for the text
        return JVM_GONE
    text = python_cause(shown) or python_cause(text) or text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    if SIGN_OF_NO_CLASS in line:
        line = "a Java class is missing that this Spark should have"
    if any(text in line for text in STOPPED):
        line = SESSION_GONE
    return line[:MESSAGE_CHARS_MAX]


def python_cause(text: str) -> str | None:
    """The line of the innermost Python traceback in a text that says what was raised.

    Spark's text of an error in a Python worker, or in foreachBatch, begins with the traceback.
    """
    _, _, rest = text.rpartition(TRACEBACK)
    ends = (line for line in rest.splitlines() if line and not line[0].isspace())
    line = next(ends, None) if rest != text else None
    return None if line is None else OWN_ERROR.sub("", line)


@contextmanager
def starvation_reported(spark: SparkSession, progress: Progress) -> Iterator[None]:
    """Report when a cluster runs no task of the jobs inside for a while. Spark waits without end.

    Spark itself logs it: `TaskSchedulerImpl`, "Initial job has not accepted any resources".
    """
    context = spark.sparkContext
    if is_local(str(context.master)):
        yield
        return
    memory = context.getConf().get("spark.executor.memory", "1g")
    text = (
        f"{context.master} runs no task: no executor is free, or stays up ({memory} each). Spark"
        " waits for one; the cluster's page shows what is there"
    )
    with _beside("keylane-starvation", _watch_starvation, context, text, progress):
        yield


@contextmanager
def _beside(name: str, watch: Any, *args: Any) -> Iterator[None]:
    """Run `watch(*args, ended)` in a thread until the block ends."""
    ended = threading.Event()
    watcher = threading.Thread(target=_watch_quietly, args=(watch, *args, ended), name=name)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch_quietly(watch: Any, *args: Any) -> None:
    from py4j.protocol import Py4JError

    # A session that has ended has nothing to show. The job itself meets the same error.
    with suppress(Py4JError, ConnectionError):
        watch(*args)


def _watch_starvation(
    context: SparkContext, text: str, progress: Progress, ended: threading.Event
) -> None:
    tracker = context.statusTracker()
    since, next_s = time.monotonic(), STARVED_S
    while not ended.wait(PROGRESS_S):
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if not known or any(stage.numActiveTasks for stage in known):
            since, next_s = time.monotonic(), STARVED_S
        waited_s = time.monotonic() - since
        if waited_s >= next_s:
            progress(f"keylane: for {waited_s:.0f} s {text}")
            next_s += STARVED_AGAIN_S


@contextmanager
def quiet_py4j() -> Iterator[None]:
    """Keep the stack traces out of the terminal that Py4J logs when its JVM ends.

    It logs them to the root logger, and raises the same errors, which become one line.
    """

    def is_other(record: logging.LogRecord) -> bool:
        return "py4j" not in Path(record.pathname).parts

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def _was_interrupted(error: BaseException) -> bool:
    """Return whether an error came while a Ctrl-C was on its way up."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = found.__context__
    return found is not None


def _failure(what: str, error: BaseException) -> str:
    line = first_line(error)
    if line in {JVM_GONE, SESSION_GONE} and _had_no_memory():
        line = NO_MEMORY
    return f"{what}{': ' if what else ''}{line}{log_hint()}"


def _had_no_memory() -> bool:
    """Return whether the log has Java's word for it. Spark then stops, and says only that."""
    try:
        with log_path().open("rb") as log:
            return SIGN_OF_NO_MEMORY.encode() in log.read(LOG_BYTES_READ)
    except FileNotFoundError:
        return False


def log_hint() -> str:
    """The log's place, if this process has started a JVM; of another's JVM the log is elsewhere."""
    return f" (Spark's log: {log_path()})" if log_path().exists() else ""
