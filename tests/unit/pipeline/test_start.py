"""keylane/pipeline/start.py: a JVM or a session that is there, and what it lacks, without a JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyspark.util
import pytest

from keylane.errors import ConfigInvalid, SparkUnavailable
from keylane.pipeline import start

CURE = r'--jars "\$\(keylane spark jars --paths\)"'


def jvm_without_connector(loader_name: str) -> Any:
    """A JVM that cannot load Spark's Kafka source, and whose threads have this class loader."""
    jvm = SimpleNamespace()
    setattr(jvm, start.JAVA_UTILS, SimpleNamespace(classIsLoadable=lambda name: False))
    loader = SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: loader_name))
    thread = SimpleNamespace(getContextClassLoader=lambda: loader)
    jvm.java = SimpleNamespace(
        lang=SimpleNamespace(Thread=SimpleNamespace(currentThread=lambda: thread))
    )
    return jvm


def test_a_running_session_without_the_connector_is_refused() -> None:
    """Executors have started without it: the line says what to start Spark with."""
    jvm = jvm_without_connector("x")
    conf = SimpleNamespace(getAll=lambda: [("spark.master", "yarn")])
    context = SimpleNamespace(getConf=lambda: conf, _jvm=jvm)
    changes: list[Any] = []
    settings = SimpleNamespace(
        isModifiable=lambda name: True, set=lambda *pair: changes.append(pair)
    )
    session: Any = SimpleNamespace(sparkContext=context, conf=settings, _jsparkSession=1)

    with pytest.raises(SparkUnavailable, match=CURE):
        start._adopt(session, {"spark.sql.a": "1"})

    assert changes == []


def test_a_class_loader_that_takes_no_jars_is_refused() -> None:
    """A notebook's own, in place of spark-submit's."""
    with pytest.raises(SparkUnavailable, match=CURE):
        start._add_connector(jvm_without_connector("repl.ClassLoader"))


def test_a_client_without_a_jvm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package pyspark-client is Spark Connect's alone."""
    monkeypatch.setattr(pyspark.util, "is_remote_only", lambda: True)

    with pytest.raises(ConfigInvalid, match=r"pyspark-client: .*keylane\[spark\]"):
        start.open_session("x")
