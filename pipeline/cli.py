"""`keylane spark`: jobs on Spark, a command for each.

Exit codes: 0 done, 2 bad input or nothing to start with.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from keylane.errors import KeylaneError
from keylane.pipeline.arguments import fail
from keylane.pipeline.audit.cli import add_audit_command
from keylane.pipeline.checkpoint_cli import add_checkpoint_command
from keylane.pipeline.needs import copy_jars, find_jars
from keylane.pipeline.profile.cli import add_profile_command


def add_spark_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `spark` with its own commands to the main parser."""
    parser = commands.add_parser(
        "spark",
        help="jobs on Spark: what keys weigh, and what consumers did",
        description="Jobs on Spark; `pip install 'keylane[spark]'` brings what they need.",
    )
    jobs = parser.add_subparsers(metavar="JOB", required=True)
    add_jars_command(jobs)
    add_profile_command(jobs)
    add_checkpoint_command(jobs)
    add_audit_command(jobs)


def add_jars_command(jobs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `jars`."""
    parser = jobs.add_parser(
        "jars", help="fetch, check and show the jars by which Spark reads Kafka"
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="copy them there")
    parser.set_defaults(run=run_jars)


def run_jars(args: argparse.Namespace) -> int:
    """Print a line per jar: sha256, coordinates, path."""
    try:
        jars = find_jars()
        if args.to is not None:
            copy_jars(jars, args.to)
    except (KeylaneError, OSError) as error:
        return fail("jars", error)
    for jar in jars:
        path = jar.path if args.to is None else args.to / jar.path.name
        print(f"{jar.sha256}  {jar.coordinates}  {path}")
    return 0
