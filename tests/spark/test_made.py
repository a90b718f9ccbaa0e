"""Jobs of `bench.spark.scale` on few records: judged without Kafka, with known answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.end_to_end import stage
from bench.spark import scale
from bench.spark.made import STEP_US, MadeLog
from bench.spark.scale import JOBS, WARM_RECORDS
from keylane.audit.record import Place, ReportBook
from keylane.keyrange.hash import key_hash
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.storage import LocalFolder

LANES = LaneLayout(16, 16)


@pytest.mark.long
@pytest.mark.parametrize("job", ["audit", "lag", "verify-migration", "simulate"])
def test_a_job_finds_what_was_made(job: str, spark: SparkSession, tmp_path: Path) -> None:
    """Each seeded fault is found, and no other; the assertions are those of the job."""
    assert JOBS[job](spark, WARM_RECORDS, LocalFolder(tmp_path))


@pytest.mark.long
def test_a_made_report_is_one_of_the_book(spark: SparkSession) -> None:
    """A report made in Spark has the bytes and the partition of `ReportBook`."""
    log = MadeLog(spark, WARM_RECORDS)
    record = log.records().where("id = 5").first()
    assert record is not None
    key = bytes(record["key"])
    lane = key_hash(key) // (2**63 // 16)
    places = {0: Place(record["partition"], LANES.key_range(record["partition"], lane))}
    book = ReportBook(
        member=f"member-{lane % 8}", place_of=places.__getitem__, audit_partition_count=16
    )
    book.assigned([0], now_us=0, generation=1)

    wanted = book.processed(
        0, record["offset"], key, now_us=1_790_812_800_000_000 + 5 * STEP_US + 5_000
    )

    made = log.reports().where(f"offset = {5 * 32 + 16}").first()
    assert made is not None
    assert (made["partition"], bytes(made["value"])) == (wanted.partition, wanted.value)


def test_runs_with_one_and_two_cores_are_two_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row keeps the cores that Spark had, which are not those of the machine."""
    for module in (scale, stage):
        monkeypatch.setattr(module, "RESULTS", tmp_path)

    for cores, seconds in ((2, 5.0), (1, 9.0), (2, 4.0)):
        scale.keep_row({"job": "profile", "cores": cores, "records": 1_000, "s": seconds})

    assert [(row["cores"], row["s"]) for row in scale.kept_rows()] == [(1, 9.0), (2, 4.0)]
