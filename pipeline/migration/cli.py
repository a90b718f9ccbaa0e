"""`keylane spark verify-migration`: the same records, and each key in the same order?

Exit codes: 0 same, 1 different, 2 bad input or inconclusive, 3 Spark failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

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
    from keylane.pipeline.migration.job import MigrationRequest, MigrationVerdict


@click.command(
    "verify-migration",
    context_settings=dict(HELP_NAMES),
    short_help="The same records before and after, in the same order by key?",
)
@kafka_options
@click.option("--before", required=True, metavar="TOPIC", help="One side.")
@click.option("--after", required=True, metavar="TOPIC", help="The other side.")
@click.option(
    "--input",
    metavar="TOPIC",
    help="Compare the work of two groups on this topic: the sides are their audit topics.",
)
@out_option
@range_options
@click.option("--after-from", metavar="PLACE", help="Of the other side; as --from if left out.")
@click.option("--after-to", metavar="PLACE", help="Of the other side; as --to if left out.")
@click.option("--after-bootstrap", metavar="HOST:PORT", help="Brokers of the other side.")
@click.option(
    "--after-option",
    multiple=True,
    metavar="kafka.NAME=VALUE",
    help="As --option, for the brokers of the other side; all of --option if left out.",
)
@click.option("--headers", is_flag=True, help="Headers are part of a value.")
@click.option("--any-order", is_flag=True, help="Compare the records only, not their order.")
@spark_options
def verify_migration_command(**options: Any) -> int:
    """Compare two topics, or the work of two groups, key by key.

    With --input, --from and --to are places of that topic. Exit status 0 same, 1 different,
    2 inconclusive.
    """
    return run_verify_command(SimpleNamespace(**options))


def run_verify_command(args: SimpleNamespace) -> int:
    """Compare, write and print."""
    try:
        _check(args)
        options = read_pairs("--option", args.option)
        others = read_pairs("--after-option", args.after_option) or options
        with start_session("keylane verify-migration", master=args.master, conf=args.conf) as spark:
            # Late: they need pyspark, and the session says so where it is missing.
            from keylane.pipeline.migration.job import run_migration, save_result
            from keylane.pipeline.storage import open_folder

            folder = open_folder(args.out, spark)
            # That of an earlier run says nothing about this one.
            folder.delete("verdict.json")
            result = run_migration(spark, _request(args, options, others))
            save_result(result, folder)
    except (KeylaneError, OSError) as error:
        return fail("verify-migration", error)
    print(render(result.verdict))
    return result.verdict.exit_code


def _check(args: SimpleNamespace) -> None:
    if args.input is not None:
        given = {
            "--after-from": args.after_from,
            "--after-to": args.after_to,
            "--headers": args.headers or None,
        }
        for flag, value in given.items():
            if value is not None:
                raise ConfigInvalid(f"{flag}: has no meaning beside --input")
    if args.before == args.after and args.after_bootstrap in {None, args.bootstrap}:
        places = (args.after_from or args.start, args.after_to or args.end)
        if args.input is not None or places == (args.start, args.end):
            raise ConfigInvalid(f"--before and --after are both {args.before}")


def _request(
    args: SimpleNamespace, options: Mapping[str, str], others: Mapping[str, str]
) -> MigrationRequest:
    from keylane.pipeline.migration.job import MigrationRequest, SideRequest

    bootstrap = args.after_bootstrap or args.bootstrap
    if args.input is not None:
        return MigrationRequest(
            before=SideRequest(bootstrap=args.bootstrap, topic=args.before, options=options),
            after=SideRequest(bootstrap=bootstrap, topic=args.after, options=others),
            work_of=SideRequest(
                bootstrap=args.bootstrap,
                topic=args.input,
                start=args.start,
                end=args.end,
                options=options,
            ),
            any_order=args.any_order,
        )
    return MigrationRequest(
        before=SideRequest(
            bootstrap=args.bootstrap,
            topic=args.before,
            start=args.start,
            end=args.end,
            options=options,
        ),
        after=SideRequest(
            bootstrap=bootstrap,
            topic=args.after,
            start=args.after_from or args.start,
            end=args.after_to or args.end,
            options=others,
        ),
        headers=args.headers,
        any_order=args.any_order,
    )


def render(verdict: MigrationVerdict) -> str:
    """The verdict as text."""
    before, after = (f"{verdict.records[name]:,} {name}" for name in ("before", "after"))
    different = f"{verdict.keys:,} keys, {verdict.keys_different:,} of them different"
    lines = [
        f"{verdict.status}: {before}, {after}, {different}",
        ", ".join(f"{kind} {count:,}" for kind, count in verdict.counts.items()),
    ]
    if verdict.unreported is not None:
        again = ", ".join(f"{count:,} {name}" for name, count in verdict.redelivered.items())
        lines.append(
            f"reported again: {again}; offsets without a report on either side:"
            f" {verdict.unreported:,}"
        )
    lines += [f"inconclusive: {reason}" for reason in verdict.reasons]
    lines += [f"{row['kind']}: {_record(row)}" for row in verdict.shown]
    for row in verdict.shown_keys:
        if row["first_number"] is not None:
            place = f"first difference at its record {row['first_number']:,}: {_sides(row)}"
            lines.append(f"key hash {row['key_hash']}: {place}")
    return "\n".join(lines)


def _record(row: Mapping[str, Any]) -> str:
    key = "no key" if row["key_hash"] is None else f"key hash {row['key_hash']}"
    what = key + (
        f", partition {row['partition']} offset {row['offset']}" if "offset" in row else ""
    )
    text = f"{what}: {_sides(row)}"
    if row["previous_before_offset"] is not None:
        text += f"; behind {_sides(row, 'previous_')}"
    return text


def _sides(row: Mapping[str, Any], prefix: str = "") -> str:
    found = []
    for name in ("before", "after"):
        partition, offset = (row[f"{prefix}{name}_{what}"] for what in ("partition", "offset"))
        found.append(f"{name} " + ("none" if offset is None else f"{partition}:{offset}"))
    return ", ".join(found)
