"""A million records through Spark: key order direct, cut by offset, and over lanes.

    python -m bench.spark.ordered_read [--records 1000000] [--rounds 2]

- *direct*: Spark's own source, 2 partitions, 2 tasks, folded per key in order.
- *lanes*: the same over 8 lanes, 8 tasks, no shuffle, in micro-batches; the query is stopped in
  the middle and goes on from its checkpoint.
- *cut*: the control. minPartitions=8 and repartition(8, key), on two executors. It breaks order.

What is folded is a chain of hashes of all values of a key, which any other order changes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyspark
import xxhash
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from bench.end_to_end.stage import PARTITIONS, Stage, create_topic, describe_run, open_stage, save
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.job import SOURCE_OPTIONS
from keylane.pipeline.keyed_state import LaneFold, all_states
from keylane.pipeline.read import lane_options, read_lanes
from keylane.pipeline.source import KeylaneSource
from keylane.pipeline.start import open_session

TOPIC: Final = "orders"
LANES: Final = 4
KEYS_PER_RECORDS: Final = 21
"""46,699 keys of a million records, as in the first measurements."""
BATCHES: Final = 5
CONTROL: Final = "--control"


def chain(state: bytes | None, _key: bytes, _offset: int, value: bytes | None) -> bytes:
    """The hash of all values of a key so far."""
    return xxhash.xxh64_digest(value or b"", seed=int.from_bytes(state or b"\0", "big"))


def fill(bootstrap: str, records: int) -> dict[tuple[int, bytes], bytes]:
    """Write numbered records; returns what `chain` must come to, by partition and key."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
        }
    )
    keys = max(1, records // KEYS_PER_RECORDS)
    states: dict[tuple[int, bytes], bytes] = {}
    for number in range(records):
        index = number * 7919 % keys
        key, partition = b"key-%d" % index, index % PARTITIONS
        value = b"%d:" % number + b"v" * 100
        states[partition, key] = chain(states.get((partition, key)), key, 0, value)
        while True:
            try:
                producer.produce(TOPIC, value, key, partition=partition)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    assert producer.flush(300) == 0
    return states


def fold_all(
    spark: SparkSession,
    stage: Stage,
    folder: Path,
    *,
    lanes: int | None,
    records: int,
    stop_after: int | None,
) -> dict[str, Any]:
    """Fold the topic in micro-batches; `lanes` None reads it direct. Stops and restarts once."""
    layout = LaneLayout(partition_count=PARTITIONS, lane_count=lanes or 1)
    rows: dict[int, list[tuple[int, int, int, int]]] = {}
    reported = threading.Event()

    def note(batch: int, summary: list[tuple[int, int, int, int]]) -> None:
        rows[batch] = summary
        if stop_after is not None and len(rows) >= stop_after:
            reported.set()

    options = {
        **SOURCE_OPTIONS,
        "kafka.bootstrap.servers": stage.kafka.bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(records // BATCHES),
    }
    if lanes is not None:
        options = lane_options(
            stage.keylane.bootstrap, TOPIC, lanes, records_per_trigger=records // BATCHES
        )
    fold = LaneFold(folder / "states", layout, chain, note)
    writer = (
        spark.readStream.format("kafka")
        .options(**options)
        .load()
        .writeStream.foreachBatch(fold)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    began_s = time.monotonic()
    query = writer.start()
    if stop_after is not None:
        assert reported.wait(600), query.exception()
        query.stop()
        query = writer.start()
    query.awaitTermination()
    took_s = time.monotonic() - began_s
    folded = {key: state for key, (_, state) in all_states(folder / "states", layout).items()}
    return {
        "tasks": max(len(batch) for batch in rows.values()),
        "batches": len(rows),
        "stopped_after_batch": stop_after,
        "records": sum(row[1] for batch in rows.values() for row in batch),
        "out_of_order": sum(row[3] for batch in rows.values() for row in batch),
        "seconds": round(took_s, 1),
        "records_per_s": round(records / took_s),
        "states": folded,
    }


def scan(spark: SparkSession, stage: Stage, way: str, records: int) -> dict[str, Any]:
    """Read the whole topic as a batch and throw it away: what each source can do."""
    if way == "scan direct":
        reader = spark.read.format("kafka").options(**SOURCE_OPTIONS)
        reader = reader.option("kafka.bootstrap.servers", stage.kafka.bootstrap)
        frame = reader.option("subscribe", TOPIC).load()
    elif way == "scan lanes":
        frame = read_lanes(spark, stage.keylane.bootstrap, TOPIC, LANES)
    else:
        spark.dataSource.register(KeylaneSource)
        own = spark.read.format("keylane").option("bootstrap", stage.keylane.bootstrap)
        frame = own.option("topic", TOPIC).option("lanes", LANES).load()
    began_s = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    took_s = time.monotonic() - began_s
    return {
        "way": way,
        "tasks": frame.rdd.getNumPartitions(),
        "seconds": round(took_s, 1),
        "records_per_s": round(records / took_s),
    }


def run_control(bootstrap: str, home: Path) -> dict[str, int]:
    """Run minPartitions=8 and repartition by key on two executors, in another process."""
    # A local cluster writes below SPARK_HOME, which must not be the installed package.
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    environment = {**os.environ, "SPARK_HOME": str(home)}
    command = [sys.executable, "-m", "bench.spark.ordered_read", CONTROL, bootstrap]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result


def control(bootstrap: str) -> dict[str, int]:
    """Records that come after a later one of their key, behind the shuffle."""

    def count(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last: dict[bytes, int] = {}
        disorders, records, keys = 0, 0, set()
        for chunk in chunks:
            for key, offset in zip(
                chunk.column(0).to_pylist(), chunk.column(1).to_pylist(), strict=True
            ):
                records += 1
                if offset < last.get(key, -1):
                    disorders += 1
                    keys.add(key)
                last[key] = max(offset, last.get(key, -1))
        yield pa.RecordBatch.from_pydict({"n": [records], "bad": [disorders], "k": [len(keys)]})

    with open_session("control", master="local-cluster[2,1,1024]") as spark:
        frame = (
            spark.read.format("kafka")
            .options(**SOURCE_OPTIONS)
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", TOPIC)
            .option("minPartitions", "8")
            .load()
            .select("key", "offset")
        )
        tasks = frame.rdd.getNumPartitions()
        rows = frame.repartition(8, "key").mapInArrow(count, "n long, bad long, k long").collect()
    return {
        "tasks": tasks,
        "records": sum(row[0] for row in rows),
        "out_of_order": sum(row[1] for row in rows),
        "keys_out_of_order": sum(row[2] for row in rows),
    }


def main() -> int:
    """Run all three; exit 1 when lanes or direct are not exact, or the control keeps order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(CONTROL, metavar="BOOTSTRAP", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.control:
        print(json.dumps(control(args.control)))
        return 0
    results: list[dict[str, Any]] = []
    scans: list[dict[str, Any]] = []
    with open_stage() as stage:
        create_topic(stage, TOPIC)
        wanted = fill(stage.kafka.bootstrap, args.records)
        with open_session("bench", master="local[2]") as spark:
            for number in range(args.rounds):
                for name, lanes, stop in (("direct", None, None), ("lanes", LANES, 2)):
                    folder = stage.folder / f"{name}-{number}"
                    found = fold_all(
                        spark, stage, folder, lanes=lanes, records=args.records, stop_after=stop
                    )
                    exact = found.pop("states") == wanted
                    results.append({"way": name, "round": number, **found, "exact": exact})
                    print(results[-1], flush=True)
                for way in ("scan direct", "scan lanes", "scan format keylane"):
                    scans.append({"round": number, **scan(spark, stage, way, args.records)})
                    print(scans[-1], flush=True)
        (stage.folder / "home").mkdir()
        results.append({"way": "cut", **run_control(stage.kafka.bootstrap, stage.folder / "home")})
        print(results[-1], flush=True)
    content = {"run": describe_run(), "records": args.records, "runs": results, "scans": scans}
    save("spark_ordered_read", content)
    kept = all(run["exact"] and run["out_of_order"] == 0 for run in results[:-1])
    return 0 if kept and results[-1]["out_of_order"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
