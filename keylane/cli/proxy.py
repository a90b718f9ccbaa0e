"""`keylane proxy`: run one node until SIGINT or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from keylane.config.node import ProxyConfig
from keylane.config.sources import (
    load_config,
    parse_group_rule,
    parse_lane_rule,
    parse_share_rule,
)
from keylane.errors import KeylaneError
from keylane.proxy.runtime.heap import pause_collection, resume_collection
from keylane.proxy.runtime.log_setup import set_up_logging
from keylane.proxy.runtime.workers import UNTIL_EOF, run_workers
from keylane.tasks import spawn

if TYPE_CHECKING:
    from keylane.proxy.server import ProxyServer

LOG_VARIABLE: Final = "KEYLANE_LOG"
FLAGS: Final = (
    "bootstrap", "listen", "advertise", "control", "cache_bytes_max", "workers", "node"
)  # fmt: skip
STDIN: Final = 0


def add_proxy_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `proxy`; every flag is also a key of the YAML file and a `KEYLANE_*` variable."""
    parser = commands.add_parser("proxy", help="run the proxy in front of a Kafka cluster")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="upstream brokers")
    parser.add_argument("--listen", metavar="HOST:PORT", help="bootstrap address for clients")
    parser.add_argument("--advertise", metavar="HOST", help="host name in addresses for clients")
    parser.add_argument("--control", metavar="HOST:PORT", help="control port, off by default")
    parser.add_argument(
        "--lanes",
        action="append",
        metavar="TOPIC=COUNT|PLAN",
        help="lanes per partition of a topic, the name may be a glob; or a range plan's file for "
        "one topic; repeatable",
    )
    parser.add_argument(
        "--assignor",
        action="append",
        metavar="GROUP=ASSIGNOR",
        help="assignor of a group's lanes (a name or glob): client, key-range; repeatable",
    )
    parser.add_argument(
        "--share-order",
        action="append",
        metavar="GROUP=ORDER",
        help="order of a share group's records (a name or glob): key; repeatable",
    )
    parser.add_argument("--cache-bytes-max", type=int, metavar="BYTES")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="nodes to run on this machine, 1 by default"
    )
    parser.add_argument(
        "--node", type=int, metavar="NUMBER", help="number of this node among many, each its own"
    )
    # For workers: end with the parent, however that ends.
    parser.add_argument(UNTIL_EOF, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other key of the configuration; repeatable",
    )
    parser.set_defaults(run=run_proxy)


def run_proxy(args: argparse.Namespace) -> int:
    """Run until a signal. Exit code 0 after a clean stop, 2 for bad configuration, 1 else."""
    set_up_logging(os.environ.get(LOG_VARIABLE, "info"))
    try:
        config = load_config(path=args.config, environment=os.environ, flags=_flags(args))
        if config.workers > 1:
            return run_workers(config)
        return _run(config, until_eof=args.until_eof)
    except KeylaneError as error:
        print(f"keylane proxy: {error}", file=sys.stderr)
        return 2 if error.error_code == 40 else 1


def _flags(args: argparse.Namespace) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for item in args.set:
        key, _, value = item.partition("=")
        flags[key] = value
    for key in FLAGS:
        flags[key] = getattr(args, key) if getattr(args, key) is not None else flags.get(key)
    if args.lanes:
        flags["lanes"] = [parse_lane_rule(text) for text in args.lanes]
    if args.assignor:
        flags["groups"] = [parse_group_rule(text) for text in args.assignor]
    if args.share_order:
        flags["share_groups"] = [parse_share_rule(text) for text in args.share_order]
    return flags


def _run(config: ProxyConfig, *, until_eof: bool) -> int:
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:  # not on Windows; the standard loop serves as well, slower
        return asyncio.run(_serve(config, until_eof=until_eof))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, until_eof=until_eof))


async def _start(server: ProxyServer, stopping: asyncio.Event) -> bool:
    """Start, which may wait for brokers for minutes; a signal ends that. False if one did."""
    starter = asyncio.current_task()
    assert starter is not None

    async def give_up() -> None:
        await stopping.wait()
        starter.cancel()

    watch = spawn(give_up(), "signal while starting")
    try:
        await server.start()
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
        starter.uncancel()
        return False
    finally:
        watch.cancel()
    return True


async def _until_the_end(server: ProxyServer, stopping: asyncio.Event) -> None:
    """Wait for a signal. Raises: KeylaneError, when the node cannot go on."""
    server.failure.add_done_callback(lambda _: stopping.set())
    await stopping.wait()
    if server.failure.done():
        raise server.failure.result()


async def _serve(config: ProxyConfig, *, until_eof: bool) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if until_eof:
        loop.add_reader(STDIN, stopping.set)  # nothing is ever written there
    pause_collection()
    # Imported late: it brings the kernels along, which other commands need not wait for.
    from keylane.proxy.server import ProxyServer  # noqa: PLC0415

    server = ProxyServer(config)
    if hasattr(signal, "SIGHUP"):  # not on Windows
        loop.add_signal_handler(signal.SIGHUP, server.reload)
    try:
        if not await _start(server, stopping):
            return 0
        resume_collection()
        control = f" control={server.control.address}" if server.control is not None else ""
        try:
            print(f"keylane ready bootstrap={server.bootstrap}{control}", flush=True)
        except BrokenPipeError:
            stopping.set()  # the process that waited for it is gone
        await _until_the_end(server, stopping)
    finally:
        await server.stop()
    return 0
