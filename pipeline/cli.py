"""`keylane spark`: jobs on Spark, a command for each.

Exit codes: 0 done, 1 findings or refused, 2 bad input or inconclusive, 3 Spark, its cluster or its
storage failed, 130 interrupted.
"""

from __future__ import annotations

from pathlib import Path

import click

from keylane.errors import KeylaneError
from keylane.pipeline.arguments import fail
from keylane.pipeline.audit.cli import audit_command
from keylane.pipeline.checkpoint_cli import checkpoint_command
from keylane.pipeline.migration.cli import verify_migration_command
from keylane.pipeline.needs import copy_jars, find_jars
from keylane.pipeline.profile.cli import profile_command
from keylane.pipeline.simulate.cli import simulate_command
from keylane.pipeline.waits.cli import lag_command
from keylane.usage import FILE, HELP_NAMES


@click.group(
    "spark",
    context_settings=dict(HELP_NAMES),
    no_args_is_help=False,
    short_help="Jobs on Spark: what keys weigh, and what consumers did.",
)
def spark_command() -> None:
    """Jobs on Spark; `pip install 'keylane[spark]'` brings what they need."""


@spark_command.command(
    "jars",
    context_settings=dict(HELP_NAMES),
    short_help="Fetch, check and show the jars by which Spark reads Kafka.",
)
@click.option("--to", type=FILE, metavar="DIR", help="Copy them there.")
@click.option("--paths", is_flag=True, help="Print the paths alone, as spark-submit --jars takes.")
def jars_command(*, to: Path | None, paths: bool) -> int:
    """Fetch, check and show the jars by which Spark reads Kafka: sha256, coordinates, path."""
    try:
        jars = find_jars()
        if to is not None:
            copy_jars(jars, to)
    except (KeylaneError, OSError) as error:
        return fail("jars", error)
    found = [jar.path if to is None else to / jar.path.name for jar in jars]
    if paths:
        print(",".join(map(str, found)))
        return 0
    for jar, path in zip(jars, found, strict=True):
        print(f"{jar.sha256}  {jar.coordinates}  {path}")
    return 0


spark_command.add_command(profile_command)
spark_command.add_command(checkpoint_command)
spark_command.add_command(audit_command)
spark_command.add_command(lag_command)
spark_command.add_command(verify_migration_command)
spark_command.add_command(simulate_command)
