"""The command line: `keylane proxy`, `keylane kafka`, `keylane demo` and the others.

Exit codes: 0 done, 1 failed (one line on stderr), 2 bad arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from keylane import __version__
from keylane.cli.proxy import add_proxy_command


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands; each sets `run`, a function of the parsed arguments.

    command: what will be parsed, where that is known; "proxy" leaves the others out.
    """
    parser = argparse.ArgumentParser(
        prog="keylane",
        description="More working consumers than partitions on Kafka, every key in order.",
    )
    parser.add_argument("--version", action="version", version=f"keylane {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_proxy_command(commands)
    if command != "proxy":
        _add_others(commands)
    return parser


def _add_others(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add all but `proxy`: while it starts, clients wait for what is imported."""
    from keylane.cli.assign import add_assign_command  # noqa: PLC0415
    from keylane.cli.describe import add_describe_command  # noqa: PLC0415
    from keylane.cli.plan import add_plan_command  # noqa: PLC0415
    from keylane.demo.cli import add_demo_command  # noqa: PLC0415
    from keylane.embedded.cli import add_kafka_command  # noqa: PLC0415
    from keylane.pipeline.cli import add_spark_command  # noqa: PLC0415

    add_kafka_command(commands)
    add_demo_command(commands)
    add_assign_command(commands)
    add_describe_command(commands)
    add_plan_command(commands)
    add_spark_command(commands)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    args = build_parser(arguments[0] if arguments else None).parse_args(arguments)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
