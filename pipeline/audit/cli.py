"""`keylane spark audit`: were all records processed, once, and each key in order?

Exit codes: 0 clean, 1 findings, 2 inconclusive.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from keylane.errors import KeylaneError
from keylane.pipeline.arguments import (
    add_kafka_arguments,
    add_spark_arguments,
    fail,
    read_pairs,
    start_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylane.pipeline.audit.job import Verdict

FOLLOW_INTERVAL: Final = "10 seconds"
"""Between two looks: each is a commit of state and a question to the group's coordinator."""


def add_audit_command(jobs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `audit` to the jobs of `keylane spark`."""
    parser = jobs.add_parser(
        "audit",
        help="were all records processed, once, and each key in order?",
        description="Judge what consumers did from the audit topic that they report to: lost,"
        " duplicated, out of order, writes of fenced members, ranges held by two members at once."
        " Exit status 0 clean, 1 findings, 2 inconclusive.",
    )
    add_kafka_arguments(parser)
    parser.add_argument("--input", required=True, metavar="TOPIC", help="what was processed")
    parser.add_argument("--audit", required=True, metavar="TOPIC", help="the reports")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--from",
        dest="start",
        default="earliest",
        metavar="PLACE",
        help="earliest, a time, or offsets such as 0:100,1:250 (default: %(default)s)",
    )
    parser.add_argument(
        "--to",
        dest="end",
        default="latest",
        metavar="PLACE",
        help="latest, a time, offsets, or group:NAME for what that group has committed;"
        " records before it without a report are lost (default: %(default)s)",
    )
    parser.add_argument(
        "--land", type=Path, metavar="DIR", help="keep what was read there (default: nowhere)"
    )
    follow = parser.add_argument_group("while the group runs: coverage as a stream")
    follow.add_argument(
        "--follow", metavar="GROUP", help="report what is lost of what this group has committed"
    )
    follow.add_argument("--once", action="store_true", help="to the end of both topics, then stop")
    add_spark_arguments(parser)
    parser.set_defaults(run=run_audit_command)


def run_audit_command(args: argparse.Namespace) -> int:
    """Run the audit and print its verdict."""
    try:
        options = read_pairs("--option", args.option)
        with start_session("keylane audit", args) as spark:
            # Late: they need pyspark, and the session says so where it is missing.
            from keylane.pipeline.audit.job import AuditRequest, committed_place, run_audit
            from keylane.pipeline.brokers import SparkGroupOffsets

            if args.follow is not None:
                return follow(spark, args, options)
            end = args.end
            if end.startswith("group:"):
                group = end.removeprefix("group:")
                with SparkGroupOffsets(spark, args.bootstrap, group, options) as offsets:
                    end = committed_place(offsets.read(args.input), args.input, group)
            request = AuditRequest(
                bootstrap=args.bootstrap,
                input_topic=args.input,
                audit_topic=args.audit,
                out=args.out,
                start=args.start,
                end=end,
                land=args.land,
                options=options,
            )
            verdict = run_audit(spark, request)
    except (KeylaneError, OSError) as error:
        return fail("audit", error)
    print(render(verdict))
    return verdict.exit_code


def follow(spark: SparkSession, args: argparse.Namespace, options: Mapping[str, str]) -> int:
    """Run the stream until it is stopped; 1 when something was lost, else 0."""
    from keylane.pipeline.audit.stream import Follower, coverage_stream
    from keylane.pipeline.brokers import SparkGroupOffsets
    from keylane.pipeline.job import spark_errors

    frame = coverage_stream(spark, args.bootstrap, args.input, args.audit, options)
    with SparkGroupOffsets(spark, args.bootstrap, args.follow, options) as offsets:
        follower = Follower(
            lambda: offsets.read(args.input),
            lambda text: print(text, flush=True),
            args.out / "follow.json",
        )
        follower.load()
        writer = frame.writeStream.foreachBatch(follower).outputMode("update")
        writer = writer.option("checkpointLocation", str(args.out / "checkpoint"))
        trigger = {"availableNow": True} if args.once else {"processingTime": FOLLOW_INTERVAL}
        with spark_errors("audit"), contextlib.suppress(KeyboardInterrupt):
            writer.trigger(**trigger).start().awaitTermination()
    return 1 if follower.lost else 0


def render(verdict: Verdict) -> str:
    """The verdict as text."""
    head = (
        f"{verdict.status}: {verdict.records:,} records, {verdict.reports:,} reports,"
        f" {verdict.redelivered:,} delivered again uncommitted"
    )
    lines = [head, ", ".join(f"{kind} {count:,}" for kind, count in verdict.counts.items())]
    lines += [f"inconclusive: {reason}" for reason in verdict.reasons]
    for row in verdict.shown:
        place = f"{row['kind']}: partition {row['partition']} offset {row['offset']}"
        if row["member"] is not None:
            place += f" at {row['member']} generation {row['generation']}"
        if row["previous_offset"] is not None:
            place += f" after offset {row['previous_offset']}"
        if row["other_member"] is not None:
            place += f", other {row['other_member']} generation {row['other_generation']}"
        lines.append(place)
    return "\n".join(lines)
