"""Logins on a cluster as docs/spark-cluster.md says: files that Spark ships, and both clients."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

from keylane.pipeline.needs import find_jars
from tests.integration.secured import PASSWORDS
from tests.integration.secured_stage import Stage
from tests.spark.cluster import HOME, SparkCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
LANES: Final = 4
ROUNDS: Final = 5
USER: Final = "alice"
JAAS: Final = """KafkaClient {{
  org.apache.kafka.common.security.scram.ScramLoginModule required
  username="{user}" password="{password}";
}};
"""
PROGRAM: Final = """
import json, os, sys
from pyspark.sql import SparkSession
from keylane.pipeline.read import read_lanes
from keylane.pipeline.source import KeylaneSource

bootstrap, topic, lanes, user = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
both = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-256"}
java = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": "ca.crt"}
rows = read_lanes(spark, bootstrap, topic, int(lanes), options=both | java)
found = {"kafka": [bytes(row.value).decode() for row in rows.collect()]}
spark.dataSource.register(KeylaneSource)
login = {"kafka.sasl.username": user, "kafka.sasl.password": os.environ["KAFKA_PASSWORD"]}
options = both | login | {"kafka.ssl.ca.location": "ca.crt", "lanes": lanes}
reader = spark.read.format("keylane").option("bootstrap", bootstrap).option("topic", topic)
rows = reader.options(**options).load()
found["keylane"] = [bytes(row.value).decode() for row in rows.collect()]
print(json.dumps(found))
"""


def test_executors_log_in_by_files_that_spark_ships(
    stage: Stage, spark_cluster: SparkCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Both sources read all records over lanes as alice, from executors that see no such folder."""
    topic = stage.plain_topic(request.node.name)
    values = stage.produce(topic, ROUNDS)
    (tmp_path / "ca.crt").write_bytes(stage.ca.read_bytes())
    (tmp_path / "jaas.conf").write_text(JAAS.format(user=USER, password=PASSWORDS[USER]))
    (tmp_path / "program.py").write_text(PROGRAM)
    jaas = "-Djava.security.auth.login.config=jaas.conf"
    command = [
        str(HOME / "bin" / "spark-submit"), "--master", spark_cluster.url,
        "--jars", ",".join(str(jar.path) for jar in find_jars()),
        "--files", "jaas.conf,ca.crt",
        "--driver-java-options", jaas, "--conf", f"spark.executor.extraJavaOptions={jaas}",
        "program.py", stage.proxy.bootstrap, topic, str(LANES), USER,
    ]  # fmt: skip

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False,
        env=spark_cluster.environment({"KAFKA_PASSWORD": PASSWORDS[USER]}),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found["kafka"]) == sorted(found["keylane"]) == sorted(values)
    assert PASSWORDS[USER] not in done.stdout + done.stderr
