"""tests/spark/cluster.py: workers on which nothing of the driver's folders is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cluster import SparkCluster

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession

folder = sys.argv[1]

def look(_):
    import keylane
    return os.path.exists(folder)

with SparkSession.builder.appName("looks").getOrCreate() as spark:
    found = spark.sparkContext.parallelize(range(4), 4).map(look).collect()
    print("seen", sorted(set(found)))
    spark.range(10).write.parquet("file://" + folder + "/rows")
"""


@pytest.mark.long
def test_executors_share_no_folder_with_the_driver(
    spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    """A folder of the driver is not there for an executor, and what it writes is not here."""
    program = tmp_path / "looks.py"
    program.write_text(PROGRAM)

    done = spark_cluster.submit(program, tmp_path, jars=False)

    assert "seen [False]" in done.out, done
    assert not list((tmp_path / "rows").glob("*.parquet")), done
    assert spark_cluster.application("looks")["state"] == "FINISHED"
