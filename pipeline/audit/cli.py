"""`keylane spark audit`: were all records processed, once, and each key in order?

Exit codes: 0 clean, 1 findings, 2 inconclusive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from keylane.errors import KeylaneError
from keylane.pipeline.arguments import (
    fail,
    kafka_options,
    out_option,
    read_pairs,
    spark_options,
    start_session,
)
from keylane.pipeline.storage import FOLDER, open_folder, require_shared
from keylane.usage import HELP_NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylane.pipeline.audit.job import Verdict

FOLLOW_INTERVAL: Final = "10 seconds"
"""Between two looks: each is a commit of state and a question to the group's coordinator."""


@click.command(
    "audit",
    context_settings=dict(HELP_NAMES),
    short_help="Were all records processed, once, and each key in order?",
)
@kafka_options
@click.option("--input", required=True, metavar="TOPIC", help="What was processed.")
@click.option("--audit", required=True, metavar="TOPIC", help="The reports.")
@out_option
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="PLACE",
    help="Earliest, a time, or offsets such as 0:100,1:250.",
)
@click.option(
    "--to",
    "end",
    default="latest",
    show_default=True,
    metavar="PLACE",
    help="Latest, a time, offsets, or group:NAME for what that group has committed;"
    " records before it without a report are lost.",
)
@click.option(
    "--land",
    type=FOLDER,
    metavar="DIR",
    help="Keep what was read there: a folder or URI that all machines of Spark share.",
)
@click.option(
    "--follow",
    metavar="GROUP",
    help="While this group runs: report as a stream what is lost of what it has committed.",
)
@click.option("--once", is_flag=True, help="End --follow at the end of both topics.")
@spark_options
def audit_command(**options: Any) -> int:
    """Judge what consumers did from the audit topic that they report to.

    Finds what was lost, duplicated or out of order, writes of fenced members, and ranges held by
    two members at once. Exit status 0 clean, 1 findings, 2 inconclusive.
    """
    return run_audit_command(SimpleNamespace(**options))


def run_audit_command(args: SimpleNamespace) -> int:
    """Run the audit and print its verdict."""
    try:
        options = read_pairs("--option", args.option)
        with start_session("keylane audit", master=args.master, conf=args.conf) as spark:
            # Late: they need pyspark, and the session says so where it is missing.
            from keylane.pipeline.audit.job import AuditRequest, committed_place, run_audit
            from keylane.pipeline.brokers import SparkAdmin

            if args.follow is not None:
                return follow(spark, args, options)
            end = args.end
            if end.startswith("group:"):
                group = end.removeprefix("group:")
                with SparkAdmin(spark, args.bootstrap, options) as admin:
                    end = committed_place(admin.committed(group, args.input), args.input, group)
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


def follow(spark: SparkSession, args: SimpleNamespace, options: Mapping[str, str]) -> int:
    """Run the stream until it is stopped; 1 when something was lost, else 0."""
    from keylane.pipeline.audit.stream import CHECKPOINT, Follower, coverage_stream
    from keylane.pipeline.brokers import SparkAdmin
    from keylane.pipeline.job import spark_errors
    from keylane.pipeline.topic_range import refuse_lanes

    folder = open_folder(args.out, spark)
    require_shared(spark, folder, "--out")  # its checkpoint has the state of all executors
    with SparkAdmin(spark, args.bootstrap, options) as admin:
        for topic in (args.input, args.audit):
            refuse_lanes(admin, topic, admin.describe(topic).partition_count)
        follower = Follower(
            lambda: admin.committed(args.follow, args.input),
            lambda text: print(text, flush=True),
            folder,
        )
        follower.load()
        frame = coverage_stream(spark, args.bootstrap, args.input, args.audit, options)
        writer = frame.writeStream.foreachBatch(follower).outputMode("update")
        writer = writer.option("checkpointLocation", folder.child(CHECKPOINT).uri)
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
    if verdict.holes:
        head += f", {sum(verdict.holes.values()):,} offsets without a record"
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
