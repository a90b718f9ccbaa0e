"""Time of a record through Spark, from producer to the sink's log: micro-batch, real time.

    python -m bench.spark.real_time [--seconds 20] [--rate 200]

Kafka to Spark to Kafka. The value is the time of its production, the sink's records have the time
of their append, on one clock: latency is the difference, in whole milliseconds. Direct has two
partitions and so two tasks, lanes have eight; there is a slot for each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from bench.end_to_end.stage import PARTITIONS, Stage, describe_run, open_stage, save
from keylane.pipeline.job import SOURCE_OPTIONS
from keylane.pipeline.read import count_slots, lane_options, start_real_time
from keylane.pipeline.start import open_session

LANES: Final = 4
BATCH: Final = "5 minutes"
"""Longer than the run: latency without the turnover of batches."""
WARM_S: Final = 20.0


def measure(
    spark: SparkSession, stage: Stage, way: str, *, seconds: float, rate: float
) -> dict[str, Any]:
    """One way: start its query, wait for the first record to come through, then measure."""
    source, sink = f"in-{way}", f"out-{way}"
    bootstrap = stage.kafka.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    stamped = {"message.timestamp.type": "LogAppendTime"}
    wanted = [NewTopic(source, PARTITIONS, 1), NewTopic(sink, 1, 1, config=stamped)]
    for future in admin.create_topics(wanted).values():
        future.result(30)
    options = {
        **SOURCE_OPTIONS,
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": source,
        "startingOffsets": "earliest",
    }
    if way == "real-time-lanes":
        options = lane_options(stage.keylane.bootstrap, source, LANES)
    frame = spark.readStream.format("kafka").options(**options).load().select("key", "value")
    writer = (
        frame.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", sink)
        .option("checkpointLocation", str(stage.folder / f"checkpoint-{way}"))
    )
    if way == "micro-batch":
        query = writer.trigger(processingTime="0 seconds").start()
    elif way == "real-time":
        updates: Any = writer.outputMode("update")  # stubs lack the trigger
        query = updates.trigger(realTime=BATCH).start()
    else:
        query = start_real_time(
            writer, bootstrap=stage.keylane.bootstrap, topic=source, lanes=LANES, batch=BATCH
        )
    warmed, count = produce(bootstrap, source, sink, seconds=seconds, rate=rate)
    latencies = read_latencies(bootstrap, sink, count)[warmed:]
    error = query.exception()
    assert error is None, error
    query.stop()
    parts = statistics.quantiles(latencies, n=100)
    return {
        "way": way,
        "records": len(latencies),
        "p50_ms": parts[49],
        "p90_ms": parts[89],
        "p99_ms": parts[98],
    }


def produce(
    bootstrap: str, source: str, sink: str, *, seconds: float, rate: float
) -> tuple[int, int]:
    """Write stamped records at a steady rate; (records of the warm-up, of all)."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "w", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([sink])
    tick = threading.Event()
    count, warmed = 0, 0
    began_s = time.monotonic()
    came = False
    while warmed == 0 or count < warmed + seconds * rate:
        producer.produce(source, b"%d" % time.time_ns(), b"key-%d" % (count % 500))
        producer.poll(0)
        count += 1
        if not came:
            came = consumer.poll(0) is not None
            assert time.monotonic() - began_s < 300, "nothing came through in 300 s"
        elif warmed == 0 and time.monotonic() - began_s > WARM_S:
            warmed = count
        tick.wait(max(0.0, began_s + count / rate - time.monotonic()))
    assert producer.flush(60) == 0
    consumer.close()
    return warmed, count


def read_latencies(bootstrap: str, sink: str, count: int) -> list[float]:
    """Milliseconds of each record, in the order of the sink's log."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "r", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([sink])
    found: list[float] = []
    deadline_s = time.monotonic() + 120
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"{len(found)} of {count} records came through"
        for message in consumer.consume(1000, timeout=1.0):
            value = message.value()
            assert message.error() is None and isinstance(value, bytes)
            found.append(message.timestamp()[1] - int(value) / 1e6)
    consumer.close()
    return found


def main() -> int:
    """Micro-batch, real time direct, real time over lanes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=200.0)
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    slots = PARTITIONS * LANES
    with open_stage() as stage, open_session("bench", master=f"local[{slots}]") as spark:
        assert count_slots(spark) == slots
        for way in ("micro-batch", "real-time", "real-time-lanes"):
            runs.append(measure(spark, stage, way, seconds=args.seconds, rate=args.rate))
            print(runs[-1], flush=True)
    save("spark_real_time", {"run": describe_run(), "rate_per_s": args.rate, "runs": runs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
