"""keylane/pipeline/settings.py: which master, jars and settings a session gets, without a JVM."""

from __future__ import annotations

import pytest

from keylane.errors import ConfigInvalid
from keylane.pipeline.settings import (
    is_local,
    read_given,
    reason_in_log,
    refuse_connect,
    running_changes,
    session_settings,
    standalone_masters,
    surely_local,
    worker_python,
)

CLUSTER = "spark://m:7077"


def test_a_master_is_given_once() -> None:
    """By `--master` or by `--conf`; two that are the same are one."""
    assert read_given(None, {"a": "1"}) == {"a": "1"}
    assert read_given(CLUSTER, {"a": "1"}) == {"a": "1", "spark.master": CLUSTER}
    assert read_given(CLUSTER, {"spark.master": CLUSTER}) == {"spark.master": CLUSTER}
    with pytest.raises(ConfigInvalid, match=r"--master local: --conf spark.master is another"):
        read_given("local", {"spark.master": CLUSTER})


def test_what_spark_was_started_with_wins_over_ours_and_loses_to_what_is_given() -> None:
    """Of a local session each setting of ours is there, unless Spark or the command has it."""
    found = {"spark.master": "local[*]", "spark.sql.shuffle.partitions": "9", "spark.x": "1"}
    given = {"spark.ui.enabled": "true", "spark.driver.memory": "3g"}

    settings = session_settings(given, found, is_new=True, is_submitted=False)

    assert settings == {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.unsafe.sorter.spill.read.ahead.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def test_jars_that_were_added_at_the_start_stay_beside_those_that_were_given() -> None:
    """A session ships what its setting names: without the connector executors could not read."""
    given, found = {"spark.jars": "/s3.jar"}, {"spark.jars": "/s3.jar,/connector.jar"}

    settings = session_settings(given, found, is_new=True, is_submitted=False)

    assert settings["spark.jars"] == "/s3.jar,/connector.jar"


@pytest.mark.parametrize("source", ["given", "found"])
def test_a_cluster_gets_nothing_that_is_for_one_machine(source: str) -> None:
    """Whichever names the master; the time zone alone is ours."""
    master = {"spark.master": CLUSTER}
    given, found = (master, {}) if source == "given" else ({}, master)

    settings = session_settings(given, found, is_new=False, is_submitted=source == "found")

    own = {"spark.sql.session.timeZone": "UTC"}
    progress = {"spark.ui.showConsoleProgress": "false"}
    assert settings == ({**own, **progress, **given} if source == "given" else own)


def test_what_comes_too_late_for_a_jvm_is_refused() -> None:
    """Its value is not repeated; the same value is no fault; a master can still be chosen."""
    found = {"spark.master": "local[*]", "spark.driver.memory": "1g"}

    with pytest.raises(ConfigInvalid) as refused:
        session_settings({"spark.jars": "/secret"}, found, is_new=False, is_submitted=True)
    with pytest.raises(ConfigInvalid, match=r"--master yarn: .* runs already, with local\[\*\]"):
        session_settings({"spark.master": "yarn"}, found, is_new=False, is_submitted=True)
    same = {"spark.driver.memory": "1g", "spark.master": "local[3]"}
    settings = session_settings(same, found, is_new=False, is_submitted=False)

    assert "--conf spark.jars: " in str(refused.value) and "secret" not in str(refused.value)
    assert settings["spark.master"] == "local[3]"


def test_a_running_session_takes_what_it_can() -> None:
    """What it has already is no change; of the rest one that it cannot take is named."""
    found = {"spark.master": CLUSTER, "spark.sql.a": "1", "spark.executor.memory": "1g"}

    changes = running_changes(
        {"spark.master": CLUSTER, "spark.sql.a": "2", "spark.executor.memory": "1g"},
        found,
        lambda name: name.startswith("spark.sql."),
    )

    assert changes == {"spark.sql.a": "2"}
    with pytest.raises(ConfigInvalid, match=r"--conf spark.executor.memory: a Spark session runs"):
        running_changes({"spark.executor.memory": "2g"}, found, lambda name: False)
    with pytest.raises(ConfigInvalid, match=r"--master local: a Spark session runs .*spark://m"):
        running_changes({"spark.master": "local"}, found, lambda name: True)


@pytest.mark.parametrize(
    ("given", "environment", "source"),
    [
        ({"spark.remote": "sc://x"}, {}, "--conf spark.remote"),
        ({}, {"SPARK_REMOTE": "sc://x"}, "SPARK_REMOTE"),
        ({}, {"SPARK_CONNECT_MODE_ENABLED": "1"}, "SPARK_CONNECT_MODE_ENABLED"),
        ({}, {"SPARK_CONNECT_MODE": "1"}, "SPARK_CONNECT_MODE"),
        ({"spark.api.mode": "connect"}, {}, "spark.api.mode connect"),
        ({}, {"SPARK_API_MODE": "CONNECT"}, "spark.api.mode connect"),
    ],
)
def test_spark_connect_is_refused_with_its_source(
    given: dict[str, str], environment: dict[str, str], source: str
) -> None:
    """Before anything starts, in whichever way it was asked for."""
    with pytest.raises(ConfigInvalid, match=f"^{source}: .*Spark Connect"):
        refuse_connect(given, environment)


def test_a_classic_session_is_not_refused() -> None:
    """Also where Connect would be the default."""
    refuse_connect({"spark.api.mode": "classic"}, {"SPARK_CONNECT_MODE": "1"})

    assert is_local("local") and is_local("local[2]") and not is_local("localhost")


@pytest.mark.parametrize(
    ("given", "environment", "defaults", "expected"),
    [
        ({}, {}, "", True),
        ({"spark.master": "local[2]"}, {"MASTER": "yarn"}, "", True),
        ({"spark.master": "yarn"}, {}, "", False),
        ({}, {"PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell"}, "", False),
        ({}, {"MASTER": "yarn"}, "", False),
        ({}, {}, "spark.a 1\n spark.master  yarn\n", False),
        ({}, {}, "# spark.master yarn\nspark.master.ui.port 1\n", True),
    ],
)
def test_a_jvm_that_may_be_of_a_cluster_gets_no_loopback_address(
    given: dict[str, str], environment: dict[str, str], defaults: str, expected: bool
) -> None:
    """All places in which spark-submit looks for a master are seen."""
    assert surely_local(given, environment, defaults) is expected


def test_masters_of_a_standalone_cluster_have_addresses() -> None:
    """Several, for one that is highly available; 7077 by default; none of other clusters."""
    assert standalone_masters("spark://a:1,b,[::1]:3") == [("a", 1), ("b", 7077), ("::1", 3)]
    assert standalone_masters("yarn") == standalone_masters("k8s://https://a:1") == []
    with pytest.raises(ConfigInvalid, match="expected spark://HOST:PORT"):
        standalone_masters("spark://a:b")


def test_the_python_of_executors_is_the_users_where_one_was_named() -> None:
    """By the variable, or by the setting, which Spark reads in spark-submit alone."""
    setting = {"spark.pyspark.python": "/opt/python"}

    assert worker_python(setting, {"PYSPARK_PYTHON": "/a"}, "/own") is None
    assert worker_python(setting, {}, "/own") == "/opt/python"
    assert worker_python({}, {}, "/own") == "/own"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('W: x\nException in thread "main" a.NoException: b\n\tat c\n', "a.NoException: b"),
        ("Error: Unrecognized option: --y\n\nUsage: z\n", "Error: Unrecognized option: --y"),
        ("bin/java: no such file\n\n", "bin/java: no such file"),
        ("", "it printed nothing"),
    ],
)  # fmt: skip
def test_the_reason_of_a_jvm_is_found_in_what_it_printed(text: str, reason: str) -> None:
    """The first exception, without its stack trace; else the last line."""
    assert reason_in_log(text) == reason
