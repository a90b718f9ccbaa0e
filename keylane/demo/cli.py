"""`keylane demo`: see it work, in about a minute.

Exit codes: 0 every check passed, 1 one failed, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from typing import Final

from keylane.errors import KeylaneError

SECONDS: Final = 50.0
"""With the start, the rest and the end a minute."""
RATE_PER_S: Final = 2_000.0
"""Much to look at, little for two cores."""
CUSTOMERS: Final = 500
BOUND: Final = 100_000
"""The demo keeps its books in memory."""
INTERRUPTED: Final = 130
"""Exit code that a shell reports for Ctrl-C: 128 + SIGINT."""


def add_demo_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `demo` to the commands of the main parser."""
    parser = commands.add_parser(
        "demo",
        help="a real Kafka, keylane and eight consumers in the terminal",
        description="Start a real Kafka, keylane, a producer of keyed orders and consumers in one"
        " group; add and kill some; show that nothing is lost and every key stays in order.",
    )
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        default=SECONDS,
        help="from the first order to the last (default: %(default)g)",
    )
    parser.add_argument(
        "--members", type=_positive(int), default=8, help="consumers (default: %(default)s)"
    )
    parser.add_argument(
        "--partitions", type=_positive(int), default=2, help="of the topic (default: %(default)s)"
    )
    parser.add_argument(
        "--lanes", type=_positive(int), default=16, help="per partition (default: %(default)s)"
    )
    parser.add_argument(
        "--rate",
        type=_positive(float),
        default=RATE_PER_S,
        help="orders per second (default: %(default)g)",
    )
    parser.add_argument(
        "--plain", action="store_true", help="lines instead of a live view, as without a terminal"
    )
    parser.add_argument(
        "--direct", action="store_true", help="without keylane, to compare: members stay idle"
    )
    parser.add_argument(
        "--workers",
        action="store_true",
        help="members are keylane's Python workers, 16 records at once each, on lanes",
    )
    parser.set_defaults(run=run_demo_command, parser=parser)


def run_demo_command(args: argparse.Namespace) -> int:
    """Run the show until its end, Ctrl-C or SIGTERM; nothing is left running."""
    if args.workers and args.direct:
        args.parser.error("--workers shows lanes, and --direct has none")
    # Late: the other commands work without the clients that the extra `demo` brings.
    try:
        from rich.console import Console  # noqa: PLC0415

        from keylane.demo.runner import DemoSettings, run_demo  # noqa: PLC0415
    except ImportError as error:
        print(f"keylane: {error}: pip install 'keylane[demo]'", file=sys.stderr)
        return 1
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may start us with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    console = Console()
    settings = DemoSettings(
        seconds=args.seconds,
        members=args.members,
        partitions=args.partitions,
        lanes=args.lanes,
        rate_per_s=args.rate,
        customers=CUSTOMERS,
        plain=args.plain or not console.is_terminal,
        direct=args.direct,
        workers=args.workers,
    )
    try:
        return run_demo(settings, console)
    except KeylaneError as error:
        print(f"keylane: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _positive(kind: type[int | float]) -> Callable[[str], float]:
    """Parse a number above zero; argparse turns the error into one line and exit 2."""

    def parse(text: str) -> float:
        number = kind(text)
        if not 0 < number < BOUND:
            raise argparse.ArgumentTypeError(f"{text}: must be above 0 and below {BOUND:,}")
        return number

    return parse
