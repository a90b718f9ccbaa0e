"""`keylane spark lag`: which keys wait longest, from produce time to commit time?

Exit codes: 0 done, 2 bad input, or not enough is known, 3 Spark failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from keylane.errors import ConfigInvalid, KeylaneError
from keylane.pipeline.arguments import (
    fail,
    kafka_options,
    out_option,
    range_options,
    read_pairs,
    spark_options,
    start_session,
)
from keylane.usage import HELP_NAMES

if TYPE_CHECKING:
    from keylane.pipeline.waits.job import LagReport

SHOWN: Final = 5
"""Rows of each table that are printed; all of them are in the files."""


@click.command(
    "lag",
    context_settings=dict(HELP_NAMES),
    short_help="How long records and keys wait, from produce to commit.",
)
@kafka_options
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@click.option("--group", metavar="NAME", help="Take its commits from keylane's journal.")
@click.option("--audit", metavar="TOPIC", help="Take commits and work from members' reports.")
@out_option
@range_options
@click.option(
    "--slice",
    type=int,
    default=3600,
    show_default=True,
    metavar="SECONDS",
    help="Length of the pieces of produce time that are shown apart.",
)
@click.option("--keys", type=int, default=20, show_default=True, metavar="N", help="Slow keys.")
@click.option(
    "--rank",
    type=click.Choice(["mean", "max", "total"]),
    default="mean",
    show_default=True,
    help="The wait that orders the keys.",
)
@click.option("--show-keys", is_flag=True, help="Write the slow keys themselves, not only hashes.")
@spark_options
def lag_command(**options: Any) -> int:
    """Measure waits from produce time to commit time, by slice, member, lane and key.

    Writes lag.json, Parquet files and a picture. Needs --group, --audit, or both.
    """
    return run_lag_command(SimpleNamespace(**options))


def run_lag_command(args: SimpleNamespace) -> int:
    """Measure, write and print."""
    try:
        if args.group is None and args.audit is None:
            raise ConfigInvalid("--group or --audit is needed: commits come from one of them")
        for flag in ("slice", "keys"):
            if getattr(args, flag) < 1:
                raise ConfigInvalid(f"--{flag}: expected 1 or more")
        options = read_pairs("--option", args.option)
        with start_session("keylane lag", master=args.master, conf=args.conf) as spark:
            # Late: they need pyspark, and the session says so where it is missing.
            from keylane.pipeline.storage import open_folder
            from keylane.pipeline.waits.job import SUMMARY, LagRequest, run_lag, save_report
            from keylane.pipeline.waits.picture import draw_waits, picture_files

            folder = open_folder(args.out, spark)
            folder.delete(SUMMARY)  # that of an earlier run says nothing about this one
            request = LagRequest(
                bootstrap=args.bootstrap,
                topic=args.topic,
                group=args.group,
                audit_topic=args.audit,
                start=args.start,
                end=args.end,
                slice_s=args.slice,
                key_count=args.keys,
                rank=args.rank,
                show_keys=args.show_keys,
                options=options,
            )
            report = run_lag(spark, request)
            save_report(report, folder)
            for name, data in picture_files(draw_waits(report)).items():
                folder.write(name, data)
    except (KeylaneError, OSError) as error:
        return fail("lag", error)
    print(render(report))
    return report.exit_code


def render(report: LagReport) -> str:
    """The report as text."""
    stamps = ", ".join(f"{name} {count:,}" for name, count in sorted(report.stamps.items()))
    lines = [f"{report.topic}: {sum(report.stamps.values()):,} records; produce times: {stamps}"]
    for figure, row in report.totals.items():
        lines.append(f"until {figure}: {_waits(row)}; {_coverage(row)}")
    for by in ("slice", "member", "lane"):
        rows = [row for row in report.groups if row["by"] == by and row["p99_ms"] is not None]
        lines += [f"  {_place(row)} until {row['figure']}: {_waits(row)}" for row in rows[:SHOWN]]
    for row in report.keys[:SHOWN]:
        name = "" if row.get("key") is None else f" {row['key'].decode(errors='replace')!r}"
        lines.append(
            f"  key hash {row['h']}{name}, partition {row['p']}: {row['known']:,} records, mean"
            f" {_seconds(row['mean_ms'])}, longest {_seconds(row['max_ms'])} at offset {row['o']}"
        )
    lines += [f"inconclusive: {reason}" for reason in report.reasons]
    return "\n".join(lines)


def _waits(row: Mapping[str, Any]) -> str:
    if not row["known"]:
        return "no known wait"
    parts = [f"{name} {_seconds(row[f'{name}_ms'])}" for name in ("p50", "p90", "p99", "max")]
    text = ", ".join(parts) + f" of {row['known']:,}"
    if row["negative"]:
        text += f" ({row['negative']:,} below 0, clocks differ; least {_seconds(row['min_ms'])})"
    return text


def _coverage(row: Mapping[str, Any]) -> str:
    text = f"known for {row['known'] / max(row['records'], 1):.1%} of {row['records']:,} records"
    rest = {
        "not yet": row["open"],
        "time lost": row["doubtful"],
        "without a produce time": row["untimed"],
    }
    return text + "".join(f", {name} {count:,}" for name, count in rest.items() if count)


def _place(row: Mapping[str, Any]) -> str:
    if row["by"] == "slice":
        return f"{datetime.fromtimestamp(row['slice'], UTC):%Y-%m-%dT%H:%M:%SZ}"
    if row["by"] == "member":
        return f"member {row['member']}"
    return f"partition {row['p']} hashes {row['lo']} to {row['hi']}"


def _seconds(wait_ms: float) -> str:
    return f"{wait_ms / 1000:,.3f} s"
