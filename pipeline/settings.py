"""Settings of a Spark session: whose win, and which come too late. No Spark is needed here.

In the order in which they win: what the command was given (`--master`, `--conf`), what Spark has
been started with (spark-submit, its `spark-defaults.conf`, a running session), and ours, which are
for a Spark on one machine alone.

Source: Spark, "Configuration": properties of deployment, such as `spark.driver.memory`, do not
change once the JVM runs; `SparkSubmitArguments` has the order of sources.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from keylane.errors import ConfigInvalid

LOOPBACK: Final = "127.0.0.1"
MASTER: Final = "spark.master"
JARS: Final = "spark.jars"
"""A session ships these to executors."""
WORKER_PYTHON: Final = "spark.pyspark.python"
DEFAULT_PORT: Final = 7077

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # 200, Spark's default, is for clusters: here each partition costs more than it holds.
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    # By TCP each task of a Python worker waits 40 ms for a delayed acknowledgement. On YARN a path
    # of a socket could be longer than the 107 characters that it may have.
    "spark.python.unix.domain.socket.enabled": "true",
    # A sort opens all the files that it has spilled, and reads ahead 2 MiB of each on the heap,
    # which no limit of Spark counts: these grow with the records of a task.
    "spark.unsafe.sorter.spill.read.ahead.enabled": "false",
}
"""For a Spark on one machine, where nothing else is said."""
ALL_SETTINGS: Final[Mapping[str, str]] = {"spark.sql.session.timeZone": "UTC"}
"""For each session that a command starts, where nothing else is said."""
LAUNCH_SETTINGS: Final = frozenset(
    {
        MASTER,
        "spark.driver.defaultJavaOptions",
        "spark.driver.extraClassPath",
        "spark.driver.extraJavaOptions",
        "spark.driver.extraLibraryPath",
        "spark.driver.memory",
        JARS,
        "spark.jars.excludes",
        "spark.jars.ivy",
        "spark.jars.ivySettings",
        "spark.jars.packages",
        "spark.jars.repositories",
        "spark.submit.deployMode",
        "spark.submit.pyFiles",
    }
)
"""Settings that only the start of a JVM can take."""
CONNECT_VARIABLES: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
NO_CONNECT: Final = (
    "keylane does not run on Spark Connect: it asks Kafka, and reads folders, in the driver's JVM,"
    " which a Connect client cannot reach"
)

_STANDALONE: Final = "spark://"
_HOST_PORT: Final = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d+))?")
_JVM_FAILURE: Final = re.compile(
    r"(?:Exception in thread \"[^\"]*\" )?(\S*(?:Exception|Error)\b.*)"
)


def read_given(master: str | None, config: Mapping[str, str]) -> dict[str, str]:
    """The settings that a command was given, `--master` among them.

    Raises:
        ConfigInvalid: two masters.
    """
    if master is None:
        return dict(config)
    if config.get(MASTER, master) != master:
        raise ConfigInvalid(f"--master {master}: --conf {MASTER} is another")
    return {**config, MASTER: master}


def refuse_connect(given: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Raises: ConfigInvalid, where Spark would start a Connect session."""
    sources = {f"--conf {name}" for name in ("spark.remote",) if name in given}
    sources |= {name for name in CONNECT_VARIABLES if name in environment}
    mode = given.get("spark.api.mode", environment.get("SPARK_API_MODE", ""))
    if mode.lower() == "connect":
        sources.add("spark.api.mode connect")
    if environment.get("SPARK_CONNECT_MODE") == "1" and mode.lower() != "classic":
        sources.add("SPARK_CONNECT_MODE")
    if sources:
        raise ConfigInvalid(f"{', '.join(sorted(sources))}: {NO_CONNECT}; use --master")


def session_settings(
    given: Mapping[str, str], found: Mapping[str, str], *, is_new: bool, is_submitted: bool
) -> dict[str, str]:
    """Return what a new session is built with, beyond `found`, which its JVM has been started with.

    `is_new`: the JVM was started just now, with `given`. `is_submitted`: by spark-submit.

    Raises:
        ConfigInvalid: something given comes too late for the JVM.
    """
    late = frozenset[str]() if is_new else LAUNCH_SETTINGS - (set() if is_submitted else {MASTER})
    for name in sorted(late & given.keys()):
        if found.get(name) != given[name]:
            raise ConfigInvalid(_too_late(name, given, found, "Spark's JVM runs already"))
    master = given.get(MASTER, found.get(MASTER, ""))
    ours = {**ALL_SETTINGS, **(LOCAL_SETTINGS if is_local(master) else {})}
    missing = {name: value for name, value in ours.items() if name not in found}
    # The progress of a command is its own; in a log Spark's bars would be lines without end.
    progress = {"spark.ui.showConsoleProgress": "false"} if not is_submitted else {}
    # Those of the JVM are the given ones, with what was added.
    jars = {name: found[name] for name in (JARS,) if name in found}
    return {**missing, **progress, **given, **jars}


def running_changes(
    given: Mapping[str, str], found: Mapping[str, str], can_change: Callable[[str], bool]
) -> dict[str, str]:
    """Return what to set in a session that runs already: of what was given, what it has not.

    Raises:
        ConfigInvalid: one of them cannot be changed in a session that runs.
    """
    changes = {name: value for name, value in given.items() if found.get(name) != value}
    for name in sorted(changes):
        if name in LAUNCH_SETTINGS or not can_change(name):
            raise ConfigInvalid(_too_late(name, given, found, "a Spark session runs already"))
    return changes


def is_local(master: str) -> bool:
    """Return whether a master's URL is one of this machine alone."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def surely_local(given: Mapping[str, str], environment: Mapping[str, str], defaults: str) -> bool:
    """Return whether a JVM that is yet to start will be local; `defaults`: spark-defaults.conf."""
    if MASTER in given:
        return is_local(given[MASTER])
    if environment.keys() & {"PYSPARK_SUBMIT_ARGS", "MASTER"}:
        return False
    return re.search(rf"^\s*{re.escape(MASTER)}[\s=:]", defaults, re.MULTILINE) is None


def standalone_masters(master: str) -> list[tuple[str, int]]:
    """Hosts and ports of the masters in `spark://HOST:PORT,HOST:PORT`; none of another URL.

    Raises:
        ConfigInvalid: it has another form.
    """
    if not master.startswith(_STANDALONE):
        return []
    found = []
    for text in master.removeprefix(_STANDALONE).split(","):
        matched = _HOST_PORT.fullmatch(text.strip())
        if matched is None:
            raise ConfigInvalid(f"{master}: expected spark://HOST:PORT")
        found.append((matched[1] or matched[2], int(matched[3] or DEFAULT_PORT)))
    return found


def worker_python(
    settings: Mapping[str, str], environment: Mapping[str, str], own: str
) -> str | None:
    """The Python to name to executors: None where the user has, by PYSPARK_PYTHON.

    Spark reads `spark.pyspark.python` in spark-submit alone. Where nothing is named it is `own`,
    that of this process: Spark's default is the first `python3` on an executor's PATH, which may
    lack what this process has.
    """
    if "PYSPARK_PYTHON" in environment:
        return None
    return settings.get(WORKER_PYTHON, own)


def reason_in_log(text: str) -> str:
    """The reason of a JVM that ended, in what it printed: an exception, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        matched = _JVM_FAILURE.fullmatch(line)
        if matched is not None:
            return matched[1]
    return lines[-1] if lines else "it printed nothing"


def _too_late(name: str, given: Mapping[str, str], found: Mapping[str, str], why: str) -> str:
    # Values of other settings may be passwords.
    if name == MASTER:
        return f"--master {given[name]}: {why}, with {found.get(name, 'no master')}"
    return f"--conf {name}: {why}, and this can only be set before; set it where that is done"
