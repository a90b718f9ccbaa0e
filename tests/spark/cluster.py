"""A standalone Spark cluster on this machine whose workers share no folder with the driver.

Master and workers are Spark's own classes, started from pyspark's jars. Each worker has a mount
namespace in which the machine's folder for temporary files, and so pytest's `tmp_path`, is a file
system of this worker alone; and a process namespace, so that a kill -9 takes its executors with
it. What the driver writes below these folders no executor sees, and the other way round.

    def test_it(spark_cluster):
        done = spark_cluster.keylane("profile", "--topic", "t", ...)   # keylane spark ... --master
        done = spark_cluster.submit(program, "argument")               # spark-submit program
        job = spark_cluster.start_submit(program)                      # the same, not waited for
        job.await_line(" of 3 tasks"); job.interrupt(); done = Done.of(job)
        spark_cluster.kill_worker(0)                                   # with its executors
        spark_cluster.start_worker(0)

A job has one slot per worker, two in all, and executors of 1 GB at most. Programs and executors run
with this process's Python. A test that kills something takes the fixture `breakable_cluster`, the
same cluster, which is whole again after it.

Source: Spark, "Spark Standalone Mode"; unshare(1), mount_namespaces(7), pid_namespaces(7).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import pyspark

from keylane.embedded.child import GuardedChild
from keylane.embedded.ports import find_free_port
from keylane.pipeline.needs import find_jars, find_java_home

ROOT: Final = Path(__file__).parents[2]
HOME: Final = Path(pyspark.__file__).parent
LOOPBACK: Final = "127.0.0.1"
WORKERS: Final = 2
START_S: Final = 180.0
RUN_S: Final = 280.0
MASTER_READY: Final = "New state: ALIVE"
WORKER_READY: Final = "Successfully registered with master"
CONF: Final = ("--conf", "spark.sql.shuffle.partitions=4")
"""200 by default, each a task."""
BOTH: Final = (
    *("--conf", f"spark.cores.max={WORKERS}"),
    *("--conf", "spark.scheduler.minRegisteredResourcesRatio=1"),
)
"""A job begins when it has an executor at each worker."""
HIDE: Final = """
stage=$1 hidden=$2 others=$3 kept=$4; shift 4
mount -t tmpfs -o mode=1777 tmpfs "$stage"
for path in $kept; do
    mkdir -p "$stage/${path#"$hidden"/}"
    mount --rbind "$path" "$stage/${path#"$hidden"/}"
done
mount --move "$stage" "$hidden"
for path in $others; do mount -t tmpfs -o mode=1777 tmpfs "$path"; done
exec "$@"
"""
"""Puts a new file system over a folder; what has to be seen of the old one is bound into it."""


class NoNamespaces(Exception):
    """This machine gives no mount namespace; the text is what it says."""


class SparkCluster:
    """A master and two workers of one core each; processes of this object alone."""

    def __init__(self, folder: Path) -> None:
        """`folder`, in which pytest makes those of tests, gets their logs in a new one."""
        self.folder = folder / "spark-cluster"
        self.folder.mkdir()
        self._stage = Path(tempfile.mkdtemp()).resolve()
        self._prefix: list[str] = []
        self.port, self.ui_port = find_free_port(), find_free_port()
        self.url = f"spark://{LOOPBACK}:{self.port}"
        arguments = ["--host", LOOPBACK, "--port", self.port, "--webui-port", self.ui_port]
        self._master = self._child("master", _java("master.Master", *arguments), MASTER_READY)
        self._workers: dict[int, GuardedChild] = {}
        self._jobs: list[Job] = []

    def start(self) -> SparkCluster:
        """Start all of it; returns when both workers are registered.

        Raises:
            NoNamespaces: the system has none for this user.
        """
        try:
            self._prefix = _hiding(self._stage, self.folder.parent.resolve())
            self.start_master()
            for number in range(WORKERS):
                self.start_worker(number)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End jobs, workers and the master."""
        for job in self._jobs:
            job.kill()
            job.wait()
        for worker in self._workers.values():
            worker.kill()
        self._master.kill()
        self._stage.rmdir()

    def start_master(self) -> None:
        """Start the master, which knows of no worker then."""
        self._master.launch()
        self._master.await_ready(time.monotonic() + START_S)

    def kill_master(self) -> None:
        """kill -9."""
        self._master.kill()

    def start_worker(self, number: int) -> None:
        """Start a worker that does not run; returns when the master has it."""
        worker = self._workers.get(number)
        if worker is None:
            work = Path(tempfile.gettempdir()) / "spark-work"  # in the worker's own file system
            ports = ["--port", find_free_port(), "--webui-port", find_free_port()]
            limits = ["--cores", 1, "--memory", "1g", "--work-dir", work]
            host = worker_hosts()[number]
            java = _java("worker.Worker", "--host", host, *ports, *limits, self.url)
            worker = self._child(f"worker-{number}", [*self._prefix, *java], WORKER_READY, host)
            self._workers[number] = worker
        if not worker.running:
            worker.launch()
            worker.await_ready(time.monotonic() + START_S)

    def kill_worker(self, number: int) -> None:
        """kill -9, of its executors and their Python too."""
        self._workers[number].kill()

    def start_missing(self) -> None:
        """Start what a test has killed."""
        if not self._master.running:
            self.start_master()
            for number in self._workers:  # they look for a master for a while only
                self.kill_worker(number)
        for number in self._workers:
            self.start_worker(number)

    def state(self) -> dict[str, Any]:
        """The master's own view: workers, activeapps, completedapps (id, name, state)."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.ui_port}/json/", timeout=30) as page:
            found: dict[str, Any] = json.load(page)
        return found

    def application(self, name: str) -> dict[str, Any]:
        """The newest application of this name, wherever it stands; empty when there is none."""
        state = self.state()
        found = [one for one in state["activeapps"] + state["completedapps"] if one["name"] == name]
        return max(found, key=lambda one: one["starttime"], default={})

    def environment(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a driver on this machine is started with."""
        return {
            **os.environ,
            "JAVA_HOME": str(find_java_home()),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
            **(given or {}),
        }

    def start_submit(
        self,
        program: Path,
        *args: object,
        options: Sequence[str] = (),
        jars: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Job:
        """Start `spark-submit --master URL [--jars ...] options program args`."""
        command = [str(HOME / "bin" / "spark-submit"), "--master", self.url, *CONF]
        if jars:
            command += ["--jars", ",".join(str(jar.path) for jar in find_jars())]
        return self._start([*command, *options, str(program), *map(str, args)], environment)

    def submit(self, program: Path, *args: object, **how: Any) -> Done:
        """`start_submit`, to its end."""
        return Done.of(self.start_submit(program, *args, **how))

    def start_keylane(
        self,
        name: str,
        *args: object,
        master: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Job:
        """Start `keylane spark NAME ... --master URL`."""
        command = [sys.executable, "-m", "keylane", "spark", name, *CONF, *map(str, args)]
        if master:
            command += ["--master", self.url]
        return self._start(command, environment)

    def keylane(self, name: str, *args: object, **how: Any) -> Done:
        """`start_keylane`, to its end."""
        return Done.of(self.start_keylane(name, *args, **how))

    def _start(self, command: list[str], environment: Mapping[str, str] | None) -> Job:
        job = Job(command, self.environment(environment))
        self._jobs.append(job)
        return job

    def _child(
        self, name: str, command: Sequence[str], ready: str, host: str = LOOPBACK
    ) -> GuardedChild:
        environment = {"SPARK_LOCAL_IP": host, "SPARK_HOME": str(HOME)}
        environment["SPARK_SCALA_VERSION"] = "2.13"  # what bin/load-spark-env.sh says of these jars
        environment["JAVA_HOME"] = str(find_java_home())
        log_path = self.folder / f"{name}.log"
        return GuardedChild(
            command, log_path=log_path, ready_text=ready, environment=environment, grace_s=0.0
        )


class Job:
    """A program that runs; what it prints is read as it comes."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # a Ctrl-C is for this program
        )
        self.pid = self._process.pid
        self._lines: dict[str, list[str]] = {"out": [], "error": []}
        self._changed = threading.Condition()
        pipes = {"out": self._process.stdout, "error": self._process.stderr}
        self._readers = [
            threading.Thread(target=self._read, args=(name, pipe)) for name, pipe in pipes.items()
        ]
        for reader in self._readers:
            reader.start()

    def await_line(self, text: str, timeout_s: float = RUN_S) -> str:
        """The first line with `text`, of either pipe; fails where the program ends without."""
        with self._changed:
            self._changed.wait_for(lambda: self._line(text) or not self._reads(), timeout_s)
            found = self._line(text)
        assert found, f"no line with {text!r}: {self._lines}"
        return found

    def interrupt(self) -> None:
        """Ctrl-C, of all that the program has started."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """kill -9, of the program alone; nothing when it has ended."""
        self._process.kill()

    def wait(self, timeout_s: float = RUN_S) -> Done:
        """Wait until it ends; it is killed when that takes longer."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"runs on after {timeout_s} s: {self._lines}") from None
        for reader in self._readers:
            reader.join()
        return Done(code, "".join(self._lines["out"]), "".join(self._lines["error"]))

    def _read(self, name: str, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                with self._changed:
                    self._lines[name].append(line)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _line(self, text: str) -> str:
        lines = [*self._lines["out"], *self._lines["error"]]
        return next((line for line in lines if text in line), "")

    def _reads(self) -> bool:
        ended = [reader for reader in self._readers if reader is not threading.current_thread()]
        return self._process.poll() is None or any(reader.is_alive() for reader in ended)


@dataclass(frozen=True, slots=True)
class Done:
    """What a program has printed, and how it ended."""

    code: int
    out: str
    error: str

    @classmethod
    def of(cls, job: Job, timeout_s: float = RUN_S) -> Done:
        """Wait for a job."""
        return job.wait(timeout_s)

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- error\n{self.error}"


def worker_hosts() -> list[str]:
    """Addresses of the workers, which their executors have as SPARK_LOCAL_IP.

    On one host Spark's shuffle reads the files of another executor by their path.
    """
    return [f"127.0.0.{number + 2}" for number in range(WORKERS)]


def _java(name: str, *args: Any) -> list[str]:
    java = find_java_home() / "bin" / "java"
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{HOME}/jars/*"]
    modules = ["--add-opens=java.base/java.nio=ALL-UNNAMED"]
    modules += ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
    return [str(java), *options, *modules, f"org.apache.spark.deploy.{name}", *map(str, args)]


def _hiding(stage: Path, folder: Path) -> list[str]:
    """The words before a command that give it separate folders for temporary files.

    `stage` is an empty folder in the one for temporary files.
    """
    hidden = stage.parent
    others = [] if hidden in folder.parents else [str(folder)]
    seen = {ROOT, *(Path(one).resolve() for one in (sys.prefix, sys.base_prefix, find_java_home()))}
    kept = sorted(str(path) for path in seen if hidden in path.parents)
    errors = []
    for flags in (["--mount"], ["--mount", "--map-root-user"]):
        # Java looks in /proc for the Python that it starts.
        command = ["unshare", *flags, "--pid", "--mount-proc", "--fork", "--kill-child"]
        command += ["sh", "-ec", HIDE, "sh"]
        command += [str(stage), str(hidden), " ".join(others), " ".join(kept)]
        try:
            tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise NoNamespaces("there is no program unshare") from None
        if tried.returncode == 0:
            return command
        errors.append(tried.stderr.strip())
    raise NoNamespaces(" / ".join(errors))
