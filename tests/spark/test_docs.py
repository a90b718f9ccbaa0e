"""docs/spark.md: its Python example and its SQL run, and say what the functions say."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from keylane.assignor.range_plan import RangePlan
from keylane.pipeline import expressions
from tests.integration.conftest import TopicFactory
from tests.spark.test_profile import fill

PAGE: Final = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")


def test_the_example_sums_lanes(spark: SparkSession, kafka: str, topic: TopicFactory) -> None:
    """Run as it stands there, on a topic with null and empty keys; the SQL beside it agrees."""
    name = topic(partitions=2)
    records = fill(kafka, name, 400)
    example = next(
        block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "lane_of" in block
    )
    (sql,) = re.findall(r"`(shiftrightunsigned\([^`]+)`", PAGE)
    names: dict[str, Any] = {
        "spark": spark,
        "options": {"kafka.bootstrap.servers": kafka, "subscribe": name},
        "plan": RangePlan(topic=name, lane_count=2, cuts=((1 << 61,), (1 << 62,)), epoch=0),
    }

    exec(example, names)  # noqa: S102  # what users would run
    load = names["load"].collect()
    differs = names["records"].where(F.expr(sql) != expressions.key_hash()).count()

    assert {(row["partition"], row["lane"]) for row in load} == set(product((0, 1), (0, 1)))
    assert sum(row["count(1)"] for row in load) == len(records)
    assert differs == 0
