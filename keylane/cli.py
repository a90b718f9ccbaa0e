"""The command line: `keylane proxy`, `keylane kafka`, `keylane demo` and the others.

In:    argv.  Out: an exit code: 0 done, 1 failed (one line on stderr), 2 bad arguments.
Next:  each command's `run_` function, set by its `add_..._command`.
Shell: argv, stdout, stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from keylane import __version__
from keylane.assign_cli import add_assign_command
from keylane.demo.cli import add_demo_command
from keylane.describe_cli import add_describe_command
from keylane.embedded.cli import add_kafka_command
from keylane.pipeline.cli import add_spark_command
from keylane.plan_cli import add_plan_command
from keylane.proxy.cli import add_proxy_command


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `run`, a function of the parsed arguments."""
    parser = argparse.ArgumentParser(
        prog="keylane",
        description="More working consumers than partitions on Kafka, every key in order.",
    )
    parser.add_argument("--version", action="version", version=f"keylane {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_proxy_command(commands)
    add_kafka_command(commands)
    add_demo_command(commands)
    add_assign_command(commands)
    add_describe_command(commands)
    add_plan_command(commands)
    add_spark_command(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = build_parser().parse_args(argv)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
