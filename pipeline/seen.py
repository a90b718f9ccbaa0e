"""Check what a job has read of a topic against what the brokers hold.

A read that ends early, or leaves a partition out, looks like a topic with fewer records. Offsets
without a record (of compaction, of transactions) look the same, so the brokers are asked, but only
about stretches at either end of a range of which nothing was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from keylane.pipeline.brokers import partitions_with_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylane.pipeline.topic_range import TopicRange


def unseen_stretches(
    spark: SparkSession, chosen: TopicRange, seen: Mapping[int, tuple[int, int]]
) -> list[str]:
    """Sentences about records at the brokers of which a job has seen none.

    `seen`: first and last offset that were read, by partition; partitions without records are not
    in it. Costs a poll per partition that has such a stretch.

    Raises:
        JobFailed: no broker answers.
        Py4JError: a broker refuses, or the range has been removed meanwhile.
    """
    bounds = list(zip(chosen.starts, chosen.ends, strict=True))
    before = [seen.get(number, (end, 0))[0] for number, (_, end) in enumerate(bounds)]
    behind = [
        max(seen[number][1] + 1, start) if number in seen else end
        for number, (start, end) in enumerate(bounds)
    ]
    found = []
    for starts, ends in ((chosen.starts, tuple(before)), (tuple(behind), chosen.ends)):
        part = replace(chosen, starts=starts, ends=ends)
        silent = [at for at in range(len(bounds)) if starts[at] < ends[at]]
        found += [
            f"no record of {chosen.topic} partition {at} was seen from offset {starts[at]} to"
            f" {ends[at]}, although the brokers have some"
            for at in partitions_with_records(spark, part, silent)
        ]
    return found
