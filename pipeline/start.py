"""The start of a Spark session: the one place where it is made, or found.

A JVM that is there already (spark-submit's, a notebook's) is taken as it is. A JVM that starts
here writes its log, and all else that it prints, to one file.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from keylane.errors import ConfigInvalid, SparkUnavailable, reason_of
from keylane.pipeline.job import first_line, jvm_of, log_hint, log_path, quiet_py4j
from keylane.pipeline.needs import check_pyspark, find_jars, find_java_home
from keylane.pipeline.settings import (
    JARS,
    LOOPBACK,
    MASTER,
    NO_CONNECT,
    read_given,
    reason_in_log,
    refuse_connect,
    running_changes,
    session_settings,
    standalone_masters,
    surely_local,
    worker_python,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR_CLASS: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
JAVA_UTILS: Final = "org.apache.spark.util.Utils"
ADDABLE_LOADER: Final = "MutableURLClassLoader"
"""The class loader that spark-submit puts jars on, before a session starts."""
NO_CONNECTOR: Final = (
    "this Spark has no Kafka connector: start it with"
    ' --jars "$(keylane spark jars --paths)", or name it in spark.jars.packages'
)
MASTER_TIMEOUT_S: Final = 10.0
"""For each master: a client of Spark asks for a minute before it gives up."""
LOG_BYTES_READ: Final = 64 * 1024


def open_session(
    app_name: str, *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark, or return this process's session. Use it as a context manager, or `stop()` it.

    `config` are Spark settings that win over all others. Without `master`, it is that of
    spark-submit or of Spark's own configuration, else `local[*]`. The jars that read Kafka are
    added where Spark has no Kafka connector; the sums of others are not checked. Takes 5 to 10 s.

    Raises:
        ConfigInvalid: what runs already cannot take a setting, or it is Spark Connect.
        SparkUnavailable: pyspark, Java or the jars are missing, or Spark does not start.
    """
    check_pyspark()
    _refuse_client()
    given = read_given(master, config or {})
    with _start_errors():
        running = running_session()
        if running is not None:
            return _adopt(running, given)
        refuse_connect(given, os.environ)
        return _start(app_name, given)


def running_session() -> SparkSession | None:
    """The session that this process has, not stopped; None: none."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context  # noqa: SLF001  # getOrCreate would start one
    if context is None:
        return None
    java_context: Any = context._jsc  # noqa: SLF001  # PySpark has no other way
    if java_context is None or java_context.sc().isStopped():
        context.stop()
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


@contextmanager
def open_or_join(
    app_name: str, *, master: str | None, config: Mapping[str, str]
) -> Iterator[SparkSession]:
    """`open_session`, stopped at the end; a session that was there before stays."""
    from py4j.protocol import Py4JError

    check_pyspark()
    is_joined = running_session() is not None
    with quiet_py4j():
        spark = open_session(app_name, master=master, config=config)
        try:
            yield spark
        finally:
            if not is_joined:
                with suppress(Py4JError, ConnectionError):  # one whose JVM has ended has stopped
                    spark.stop()


def _refuse_client() -> None:
    """Raises: ConfigInvalid, the package pyspark-client is installed, which has no JVM."""
    from pyspark.util import is_remote_only

    if is_remote_only():
        raise ConfigInvalid(f"pyspark-client: {NO_CONNECT}; pip install 'keylane[spark]'")


def _start(app_name: str, given: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _ask_master(given.get(MASTER, ""))  # before a JVM starts
    is_new = _open_jvm(given)
    gateway: Any = SparkContext._gateway  # noqa: SLF001  # PySpark has no public name for it
    jvm = gateway.jvm
    _add_connector(jvm)
    found = dict(SparkConf().getAll())
    settings = session_settings(given, found, is_new=is_new, is_submitted=gateway.proc is None)
    python = worker_python({**found, **given}, os.environ, sys.executable)
    if python is not None:
        os.environ["PYSPARK_PYTHON"] = python
    if MASTER not in given:
        _ask_master(found.get(MASTER, ""))
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _open_jvm(given: Mapping[str, str]) -> bool:
    """Make sure of a JVM; whether it was started here and now."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    is_there = SparkContext._gateway is not None  # noqa: SLF001
    if is_there or "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()  # noqa: SLF001
        return False
    conf = SparkConf(loadDefaults=False)
    for name, value in given.items():
        conf.set(name, value)
    with _launch_environment(given), log_path().open("ab") as log:
        streams = {"stdout": log, "stderr": log}
        gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
    return True


def _add_connector(jvm: Any) -> None:
    """Put the locked jars on the class path, as spark-submit does with `--jars`, if need be."""
    if has_connector(jvm):
        return
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if ADDABLE_LOADER not in str(loader.getClass().getName()):
        raise SparkUnavailable(NO_CONNECTOR)
    paths = [jar.path for jar in find_jars()]
    for path in paths:
        loader.addURL(jvm.java.net.URL(path.as_uri()))
    properties = jvm.java.lang.System
    jars = [properties.getProperty(JARS), *map(str, paths)]
    properties.setProperty(JARS, ",".join(filter(None, jars)))


def has_connector(jvm: Any) -> bool:
    """Return whether the JVM finds Spark's Kafka connector."""
    return bool(getattr(jvm, JAVA_UTILS).classIsLoadable(CONNECTOR_CLASS))


def _adopt(spark: SparkSession, given: Mapping[str, str]) -> SparkSession:
    """A session that runs already, with the settings that it can still take."""
    found = dict(spark.sparkContext.getConf().getAll())
    changes = running_changes(given, found, spark.conf.isModifiable)
    if not has_connector(jvm_of(spark)):
        raise SparkUnavailable(NO_CONNECTOR)
    for name, value in changes.items():
        spark.conf.set(name, value)
    return spark


def _ask_master(master: str) -> None:
    """Raises: SparkUnavailable, nothing listens at a standalone master's address.

    Spark's own client asks three times, 20 s apart (`StandaloneAppClient`), and then removes the
    application: the start ends a minute later, and not with the reason.
    """
    masters = standalone_masters(master)
    reasons = []
    for address in masters:
        try:
            socket.create_connection(address, MASTER_TIMEOUT_S).close()
        except OSError as error:
            reasons.append(reason_of(error).lower())
        else:
            return
    if masters:
        raise SparkUnavailable(f"{master}: no master answers ({', '.join(reasons)})")


@contextmanager
def _start_errors() -> Iterator[None]:
    """Turn what Spark's start raises into one line. What had started is stopped."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        reason = first_line(error)
        if "JAVA_GATEWAY_EXITED" in reason:
            reason = reason_in_log(_log_text())
        context = SparkContext._active_spark_context  # noqa: SLF001
        if context is not None:
            with suppress(Py4JError, ConnectionError):
                context.stop()
        raise SparkUnavailable(f"Spark does not start: {reason}{log_hint()}") from error


def _log_text() -> str:
    with log_path().open("rb") as log:
        return log.read(LOG_BYTES_READ).decode(errors="replace")


@contextmanager
def _launch_environment(given: Mapping[str, str]) -> Iterator[None]:
    """JAVA_HOME, and for a local master the loopback address, while a JVM starts."""
    wanted = {"JAVA_HOME": str(find_java_home())}
    if surely_local(given, os.environ, _defaults_text()):
        wanted["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", LOOPBACK)
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


def _defaults_text() -> str:
    """Spark's own configuration file, empty when there is none."""
    from pyspark.find_spark_home import _find_spark_home

    folder = os.environ.get("SPARK_CONF_DIR") or str(Path(_find_spark_home()) / "conf")
    try:
        return (Path(folder) / "spark-defaults.conf").read_text(errors="replace")
    except FileNotFoundError:
        return ""
