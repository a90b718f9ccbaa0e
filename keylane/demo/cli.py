"""`keylane demo`: see it work, in about a minute.

Exit codes: 0 every check passed, 1 one failed, 130 Ctrl-C.
"""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any, Final

import click

from keylane.errors import PackageMissing
from keylane.usage import HELP_NAMES

SECONDS: Final = 50.0
"""With the start, the rest and the end a minute."""
RATE_PER_S: Final = 2_000.0
"""Much to look at, little for two cores."""
CUSTOMERS: Final = 500
BOUND: Final = 100_000
"""The demo keeps its books in memory."""
INTERRUPTED: Final = 130
"""Exit code that a shell reports for Ctrl-C: 128 + SIGINT."""


ABOVE_ZERO: Final = click.FloatRange(0, BOUND, min_open=True, max_open=True)
AT_LEAST_ONE: Final = click.IntRange(1, BOUND, max_open=True)


@click.command(
    "demo",
    context_settings=dict(HELP_NAMES),
    short_help="A real Kafka, keylane and eight consumers in the terminal.",
)
@click.option(
    "--seconds",
    type=ABOVE_ZERO,
    default=SECONDS,
    show_default=True,
    help="From the first order to the last.",
)
@click.option("--members", type=AT_LEAST_ONE, default=8, show_default=True, help="Consumers.")
@click.option("--partitions", type=AT_LEAST_ONE, default=2, show_default=True, help="Of the topic.")
@click.option("--lanes", type=AT_LEAST_ONE, default=16, show_default=True, help="Per partition.")
@click.option(
    "--rate", type=ABOVE_ZERO, default=RATE_PER_S, show_default=True, help="Orders per second."
)
@click.option("--plain", is_flag=True, help="Lines instead of a live view, as without a terminal.")
@click.option("--direct", is_flag=True, help="Without keylane, to compare: members stay idle.")
@click.option(
    "--workers",
    is_flag=True,
    help="Members are keylane's Python workers, 16 records at once each, on lanes.",
)
def demo_command(**options: Any) -> int:
    """Start a real Kafka, keylane, a producer of keyed orders and consumers in one group.

    Consumers are added and killed; the end shows that nothing is lost and every key is in order.
    """
    return run_demo_command(SimpleNamespace(**options))


def run_demo_command(args: SimpleNamespace) -> int:
    """Run the show until its end, Ctrl-C or SIGTERM; nothing is left running."""
    if args.workers and args.direct:
        raise click.UsageError("--workers shows lanes, and --direct has none")
    # Late: the other commands work without the clients that the extra `demo` brings.
    try:
        from rich.console import Console  # noqa: PLC0415

        from keylane.demo.runner import DemoSettings, run_demo  # noqa: PLC0415
    except ImportError as error:
        raise PackageMissing(f"{error}: pip install 'keylane[demo]'") from None
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
    except KeyboardInterrupt:
        return INTERRUPTED
