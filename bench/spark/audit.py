"""Cost of an audit of a million reports, which has to find the faults that were put in.

    python -m bench.spark.audit [--records 1000000] [--master local[2]]

A log with known faults (losses, duplicates, swapped records, a fenced member's writes, a range at
two members) and one without go through Kafka; each finding must be at its exact offset.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import pairwise
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from bench.end_to_end.stage import Stage, create_topic, describe_run, open_stage, save
from keylane.pipeline.audit.job import AuditRequest, run_audit
from keylane.pipeline.start import open_session
from tests.spark.audit_log import AUDIT_PARTITIONS, PARTITIONS, AuditLog, make_log


def write_log(bootstrap: str, log: AuditLog, input_topic: str, audit_topic: str) -> None:
    """Fill both topics, in the order of the log."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
        }
    )

    def send(topic: str, value: bytes, key: bytes | None, partition: int) -> None:
        while True:
            try:
                producer.produce(topic, value, key, partition=partition)
            except BufferError:
                producer.poll(0.1)
            else:
                return

    for partition, end in log.ends.items():
        for _ in range(end):
            send(input_topic, b"x" * 100, None, partition)
    for message in log.messages:
        send(audit_topic, message.value, message.key, message.partition)
    assert producer.flush(300) == 0


def run_one(stage: Stage, spark: SparkSession, name: str, log: AuditLog) -> dict[str, Any]:
    """Audit one log; `exact` when its findings are those that were put in."""
    topics = (f"orders-{name}", f"audit-{name}")
    create_topic(stage, topics[0], PARTITIONS)
    create_topic(stage, topics[1], AUDIT_PARTITIONS)
    write_log(stage.kafka.bootstrap, log, *topics)
    out = stage.folder / name
    request = AuditRequest(
        bootstrap=stage.kafka.bootstrap, input_topic=topics[0], audit_topic=topics[1], out=str(out)
    )
    steps: list[tuple[str, float]] = []
    verdict = run_audit(
        spark, request, progress=lambda text: steps.append((text, time.monotonic()))
    )
    rows = spark.read.parquet(str(out / "findings")).collect()
    found = {(row["kind"], row["partition"], row["offset"]) for row in rows}
    wanted = {(kind, *place) for kind, places in log.expected.items() for place in places}
    total_s = steps[-1][1] - steps[0][1]
    return {
        "log": name,
        "status": verdict.status,
        "reports": verdict.reports,
        "redelivered": verdict.redelivered,
        "counts": dict(verdict.counts),
        "exact": found == wanted,
        "steps_s": {
            text: round(after_s - at_s, 1) for (text, at_s), (_, after_s) in pairwise(steps)
        },
        "total_s": round(total_s, 1),
        "reports_per_s": round(verdict.reports / total_s),
    }


def main() -> int:
    """Both logs; exit 1 when a finding is missing or invented."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--master", default="local[2]")
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with open_stage() as stage, open_session("bench", master=args.master) as spark:
        for name, faulty in (("seeded", True), ("clean", False)):
            log = make_log(args.records, seed=7, keys=args.records // 25, faulty=faulty)
            runs.append(run_one(stage, spark, name, log))
            print(runs[-1], flush=True)
    save("spark_audit", {"run": describe_run(), "records": args.records, "runs": runs})
    return 0 if all(run["exact"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
