"""An example job: a running total per key, in key order, over lanes, without a shuffle.

    python -m keylane.pipeline.example_totals --bootstrap PROXY --topic orders --lanes 16
        --folder /data/totals [--group totals] [--brokers HOST:PORT] [--source keylane]
        [--option kafka.security.protocol=SASL_SSL ...]

Values are JSON numbers or objects with a field `amount`. Each key's total, count and largest drop
between two neighbours are kept beside its lane; the last is right only in key order.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, get_args

from keylane.errors import ConfigInvalid, KeylaneError
from keylane.keyrange.hash import HashName
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.arguments import EXIT_INTERRUPTED, end, read_pairs, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE: Final = "<qddd"
"""Records, total, last amount, largest drop. A text: started by `python -m`, the job's functions go
to the executors by value, with what they name, and a `Struct` cannot be pickled."""


def add_amount(state: bytes | None, _key: bytes, _offset: int, value: bytes | None) -> bytes:
    """The fold: one more amount of a key. What is no number counts as zero."""
    count, total, last, drop = struct.unpack(STATE, state) if state else (0, 0.0, 0.0, 0.0)
    amount = read_amount(value)
    if count:
        drop = max(drop, last - amount)
    return struct.pack(STATE, count + 1, total + amount, amount, drop)


def read_amount(value: bytes | None) -> float:
    """The amount of a record."""
    try:
        found = json.loads(value or b"0")
        return float(found["amount"] if isinstance(found, dict) else found)
    except (KeyError, TypeError, ValueError):
        return 0.0


def read_stream(
    spark: SparkSession, args: argparse.Namespace, options: Mapping[str, str]
) -> DataFrame:
    """The topic as lanes, by either source; `partition` is the lane index in both."""
    from pyspark.sql import functions as F

    from keylane.pipeline.read import lane_options
    from keylane.pipeline.source import KeylaneSource

    if args.source == "kafka":
        options = lane_options(
            args.bootstrap,
            args.topic,
            args.lanes,
            records_per_trigger=args.batch_records,
            options=options,
        )
        return spark.readStream.format("kafka").options(**options).load()
    spark.dataSource.register(KeylaneSource)
    reader = spark.readStream.format("keylane").option("bootstrap", args.bootstrap)
    reader = reader.option("topic", args.topic).option("lanes", args.lanes)
    frame = reader.option("maxRecordsPerTrigger", args.batch_records).load()
    index = F.col("lane") * args.partitions + F.col("partition")
    return frame.withColumn("partition", index.cast("int"))


def run(spark: SparkSession, args: argparse.Namespace) -> None:
    """Fold until the log's end (`--once`), or until it is stopped.

    Raises: ConfigInvalid, the folder or an option cannot be used; JobFailed, the query ended by an
    error.
    """
    from keylane.pipeline.job import spark_errors
    from keylane.pipeline.keyed_state import LaneFold
    from keylane.pipeline.listener import LaneProgressListener
    from keylane.pipeline.read import lane_topic
    from keylane.pipeline.storage import open_folder, require_shared
    from keylane.pipeline.topic_range import count_partitions

    options = read_pairs("--option", args.option)
    if options and args.source != "kafka":
        raise ConfigInvalid("--option: is for Spark's Kafka source; librdkafka has other names")
    folder = open_folder(args.folder, spark)
    require_shared(spark, folder, "--folder")

    args.partitions = count_partitions(spark, args.bootstrap, lane_topic(args.topic, 1), options)
    layout = LaneLayout(partition_count=args.partitions, lane_count=args.lanes, hash=args.hash)

    def report(batch: int, rows: list[tuple[int, int, int, int]]) -> None:
        records, disorders = sum(row[1] for row in rows), sum(row[3] for row in rows)
        sys.stdout.write(
            f"batch {batch}: {records} records in {len(rows)} lanes, {disorders} out of order\n"
        )
        sys.stdout.flush()

    fold = LaneFold(folder.child("states").uri, layout, add_amount, report)
    writer = read_stream(spark, args, options).writeStream.foreachBatch(fold)
    writer = writer.option("checkpointLocation", folder.child("checkpoint").uri)
    if args.group:
        brokers = args.brokers or args.bootstrap
        spark.streams.addListener(LaneProgressListener(spark, brokers, args.group, options=options))
    if args.once:
        writer = writer.trigger(availableNow=True)
    with spark_errors("the query"):
        writer.start().awaitTermination()


def main(argv: list[str] | None = None) -> int:
    """Run the job; 0 when it ended in order, 2 for bad input, 3 when Spark or storage failed."""
    parser = argparse.ArgumentParser(prog="example_totals", description=__doc__)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="the proxy")
    parser.add_argument("--brokers", metavar="HOST:PORT", help="for --group (default: the proxy)")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--hash", choices=get_args(HashName), default="xxh64", help="of the lanes")
    parser.add_argument("--folder", required=True, help="a path or a URI, such as s3a://...")
    parser.add_argument("--group", help="commit Spark's progress as this group's")
    parser.add_argument("--source", choices=("kafka", "keylane"), default="kafka")
    parser.add_argument("--option", action="append", default=[], metavar="kafka.NAME=VALUE")
    parser.add_argument("--batch-records", type=int, default=200_000)
    parser.add_argument("--once", action="store_true", help="read to the log's end, then stop")
    parser.add_argument("--master", help="Spark's")
    parser.add_argument("--conf", action="append", default=[], metavar="spark.NAME=VALUE")
    args = parser.parse_args(argv)
    try:
        name = "keylane example totals"
        with start_session(name, master=args.master, conf=args.conf) as spark:
            run(spark, args)
    except (KeylaneError, OSError) as error:
        return end("example_totals", error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
