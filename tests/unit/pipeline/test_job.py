"""keylane/pipeline/job.py: each error of Spark is one line, and a cluster that gives nothing is."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Never

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from keylane.errors import ConfigInvalid, JobFailed, SparkUnavailable, StorageFailed
from keylane.pipeline import job
from keylane.pipeline.arguments import end
from keylane.pipeline.job import jvm_of, quiet_py4j, spark_errors, starvation_reported
from keylane.pipeline.listener import LaneProgressListener
from keylane.pipeline.read import count_slots, read_lanes
from keylane.pipeline.storage import open_folder


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a JVM that this process starts would log; there is none."""
    path = tmp_path / "spark.log"
    monkeypatch.setattr(job, "log_path", lambda: path)
    return path


class Cause:
    """A Java exception as Py4J shows it."""

    def __init__(self, text: str, cause: Cause | None = None) -> None:
        self.toString, self.getCause = lambda: text, lambda: cause


def java_error(cause: Cause) -> Py4JError:
    """An error of Py4J, with the exception that it carries."""
    error = Py4JError("An error occurred while calling o1.count.\n\tat org.apache.spark")
    error.java_exception = cause
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (java_error(Cause("outer", Cause("a.b.Inner: why\n\tat x"))), "a.b.Inner: why"),
        (
            java_error(Cause("java.lang.IllegalStateException: Cannot call methods on a stopped"
                             " SparkContext.\nThis stopped")),
            "the cluster has removed this application, or its session was stopped",
        ),
        (PySparkException("no such column\n\nJVM stacktrace:\nx"), "no such column"),
        (pa.ArrowInvalid("Unrecognized filesystem"), "Unrecognized filesystem"),
        (ConnectionRefusedError(111, "Connection refused"), "Spark's JVM has ended"),
        (Py4JNetworkError("Answer from Java side is empty"), "Spark's JVM has ended"),
        (
            TypeError("'JavaPackage' object is not callable"),
            "a Java class is missing that this Spark should have",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_each_error_of_spark_is_one_line(error: Exception, line: str, log: Path) -> None:
    """The cause and no stack trace; the log is named where this process has one."""
    with pytest.raises(JobFailed) as plain, spark_errors():
        raise error
    log.touch()
    with pytest.raises(JobFailed) as named, spark_errors("profile t"):
        raise error

    assert str(plain.value) == line
    assert str(named.value) == f"profile t: {line} (Spark's log: {log})"


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("the JVM has ended"),
        java_error(Cause('java.lang.NullPointerException: "org.apache.spark.SparkContext'
                         '.dagScheduler()" is null')),
    ],
)  # fmt: skip
def test_a_jvm_without_memory_is_named_with_the_cure(error: Exception, log: Path) -> None:
    """Spark stops, and its last error is another one; the log has the first."""
    log.write_text("WARN TaskMemoryManager\njava.lang.OutOfMemoryError: Java heap space\n")

    match = r"^simulate: .* --conf spark.driver.memory=4g \(Spark's"
    with pytest.raises(JobFailed, match=match), spark_errors("simulate"):
        raise error


def test_a_failure_that_ctrl_c_made_is_ctrl_c() -> None:
    """PySpark cancels the jobs, and then what waits for their results fails."""
    error = PySparkException("[SPARK_JOB_CANCELLED]")
    error.__context__ = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt), spark_errors():
        raise error


def test_stack_traces_of_py4j_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Those that it logs to the root logger itself; what others log stays."""
    path = f"x{os.sep}py4j{os.sep}java_gateway.py"
    with quiet_py4j():
        for place in (path, "own.py"):
            root = logging.getLogger()
            root.handle(root.makeRecord("root", logging.ERROR, place, 1, place, (), None))

    assert [record.pathname for record in caplog.records] == ["own.py"]


def test_errors_of_this_program_stay_what_they_are() -> None:
    """A bug is not taken for a failure of Spark."""
    with pytest.raises(TypeError, match="not a number"), spark_errors():
        raise TypeError("not a number")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobFailed("x"), 3), (SparkUnavailable("x"), 3), (StorageFailed("x"), 3),
        (ConfigInvalid("x"), 2), (OSError("x"), 2),
    ],
)  # fmt: skip
def test_a_failure_of_spark_has_its_exit_status(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """3, which is neither a finding nor bad input; one line with the program's name."""
    assert end("keylane spark x", error) == code
    assert capsys.readouterr().err == "keylane spark x: x\n"


class Connect:
    """A session of Spark Connect: it refuses what only a JVM has."""

    def __getattr__(self, name: str) -> Never:
        raise AttributeError(f"[JVM_ATTRIBUTE_NOT_SUPPORTED] {name}")


@pytest.mark.parametrize(
    "use",
    [
        jvm_of,
        count_slots,
        lambda spark: read_lanes(spark, "b:1", "t", 2),
        lambda spark: LaneProgressListener(spark, "b:1", "g"),
        lambda spark: open_folder("s3a://b/f", spark),
    ],
    ids=["jvm", "slots", "read_lanes", "listener", "folder"],
)
def test_a_session_of_spark_connect_is_refused_at_once(use: Any) -> None:
    """By one line with the reason, in each function that would reach for the JVM."""
    with pytest.raises(ConfigInvalid, match="keylane does not run on Spark Connect"):
        use(Connect())


class Tracker:
    """A status tracker with one active stage, whose tasks run or not."""

    def __init__(self, running: Iterator[int]) -> None:
        self._running = running

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return [1]

    def getStageInfo(self, _: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(numActiveTasks=next(self._running))


def session(master: str, running: Iterator[int]) -> Any:
    """A session whose stage has these numbers of running tasks, one look after the other."""
    conf = SimpleNamespace(get=lambda _, default: default)
    context = SimpleNamespace(
        master=master, getConf=lambda: conf, statusTracker=lambda: Tracker(running)
    )
    return SimpleNamespace(sparkContext=context)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds pass between two looks."""
    times = itertools.count(0, 10)
    monkeypatch.setattr(job, "PROGRESS_S", 0)
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: next(times)))


@pytest.mark.usefixtures("clock")
def test_a_cluster_that_gives_no_executor_is_reported_after_a_while() -> None:
    """Once, and again a minute later; a task that runs begins the wait anew."""
    lines: list[str] = []
    seen = threading.Event()

    def progress(text: str) -> None:
        lines.append(text)
        if len(lines) == 2:
            seen.set()

    running = itertools.chain((0, 1), itertools.repeat(0))
    with starvation_reported(session("spark://m:1", running), progress):
        assert seen.wait(60)

    assert lines[0] == (
        "keylane: for 20 s spark://m:1 runs no task: no executor is free, or stays up (1g each)."
        " Spark waits for one; the cluster's page shows what is there"
    )
    assert lines[1].startswith("keylane: for 80 s spark://m:1 runs no task")


def test_one_machine_is_not_watched() -> None:
    """Its slots are always there."""
    with starvation_reported(session("local[2]", iter(())), pytest.fail):
        threads = {thread.name for thread in threading.enumerate()}

    assert "keylane-starvation" not in threads
