"""`keylane proxy`: run one node until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from keylane.config.origins import LoadedConfig
from keylane.config.rule_forms import parse_group_rule, parse_lane_rule, parse_share_rule
from keylane.config.sources import SET, load_config
from keylane.errors import ConfigInvalid
from keylane.proxy.runtime.heap import pause_collection, resume_collection
from keylane.proxy.runtime.log_setup import set_up_logging
from keylane.proxy.runtime.workers import UNTIL_EOF, run_workers
from keylane.tasks import spawn
from keylane.usage import FILE, HELP_NAMES, is_given, split_pair

if TYPE_CHECKING:
    from keylane.proxy.server import ProxyServer

Command = TypeVar("Command", bound=Callable[..., Any])
LOG_VARIABLE: Final = "KEYLANE_LOG"
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FLAGS: Final = (
    "bootstrap", "listen", "advertise", "control", "cache_bytes_max", "workers", "node"
)  # fmt: skip
STDIN: Final = 0


def config_options(
    control: str = "Control port of the node, off by default.",
) -> Callable[[Command], Command]:
    """Return what adds every flag that sets a key, also a key of the YAML file and a variable.

    control: the help of `--control`.
    """
    options = (
        click.option("--config", type=FILE, metavar="FILE", help="YAML file."),
        click.option("--bootstrap", metavar="HOST:PORT", help="Upstream brokers."),
        click.option("--listen", metavar="HOST:PORT", help="Bootstrap address for clients."),
        click.option("--advertise", metavar="HOST", help="Host name in addresses for clients."),
        click.option("--control", metavar="HOST:PORT", help=control),
        click.option(
            "--lanes",
            multiple=True,
            metavar="TOPIC=COUNT|PLAN",
            help="Lanes per partition of a topic, the name may be a glob; or a range plan's file "
            "for one topic; may be repeated.",
        ),
        click.option(
            "--assignor",
            multiple=True,
            metavar="GROUP=ASSIGNOR",
            help="Assignor of a group's lanes (a name or glob): client, key-range; may be "
            "repeated.",
        ),
        click.option(
            "--share-order",
            multiple=True,
            metavar="GROUP=ORDER",
            help="Order of a share group's records (a name or glob): key; may be repeated.",
        ),
        click.option(
            "--cache-bytes-max", type=int, metavar="BYTES", help="Records that wait for a lane."
        ),
        click.option(
            "--workers", type=int, metavar="N", help="Nodes to run on this machine, 1 by default."
        ),
        click.option(
            "--node", type=int, metavar="NUMBER", help="Number of this node, each its own."
        ),
        click.option(
            SET,
            multiple=True,
            metavar="KEY=VALUE",
            help="Any other key of the configuration; may be repeated.",
        ),
    )

    def add_all(command: Command) -> Command:
        for add in reversed(options):
            command = add(command)
        return command

    return add_all


@click.command(
    "proxy",
    context_settings=dict(HELP_NAMES),
    short_help="Run the proxy in front of a Kafka cluster.",
)
@config_options()
# For workers: end with the parent, however that ends.
@click.option(UNTIL_EOF, is_flag=True, hidden=True)
def proxy_command(**options: Any) -> int:
    """Run the proxy in front of a Kafka cluster, until SIGINT or SIGTERM."""
    return run_proxy(SimpleNamespace(**options))


def run_proxy(args: SimpleNamespace) -> int:
    """Run until a signal. Exit code 0 after a clean stop. Raises: KeylaneError."""
    set_up_logging(log_level(os.environ))
    loaded = load_options(args)
    if loaded.config.workers > 1:
        return run_workers(loaded)
    return _run(loaded, until_eof=args.until_eof)


def load_options(
    args: SimpleNamespace, needed: Mapping[str, str] = MappingProxyType({})
) -> LoadedConfig:
    """Return the configuration by file, environment and flags. Raises: ConfigInvalid.

    needed: values of required keys that are set nowhere.
    """
    return load_config(
        path=args.config,
        environment=os.environ,
        flags=_flags(args),
        places=_places(args),
        needed=needed,
    )


def log_level(environment: Mapping[str, str]) -> str:
    """Return the level of the log. Raises: ConfigInvalid, which names the variable."""
    level = environment.get(LOG_VARIABLE, "") or "info"
    if level.lower() not in LOG_LEVELS:
        raise ConfigInvalid(f"{LOG_VARIABLE}={level}: expected one of {', '.join(LOG_LEVELS)}")
    return level


def _flags(args: SimpleNamespace) -> dict[str, Any]:
    flags: dict[str, Any] = dict(split_pair(SET, item) for item in args.set)
    for key in FLAGS:
        flags[key] = getattr(args, key) if getattr(args, key) is not None else flags.get(key)
    if args.lanes:
        flags["lanes"] = [parse_lane_rule(text) for text in args.lanes]
    if args.assignor:
        flags["groups"] = [parse_group_rule(text) for text in args.assignor]
    if args.share_order:
        flags["share_groups"] = [parse_share_rule(text) for text in args.share_order]
    return flags


def _places(args: SimpleNamespace) -> dict[str, str]:
    """Return the flag that sets a key, where it has another name than the key."""
    places = {key: SET for key in _set_keys(args) if not is_given(getattr(args, key, None))}
    rules = {"lanes": "lanes", "groups": "assignor", "share_groups": "share_order"}
    return places | {
        key: f"--{flag.replace('_', '-')}" for key, flag in rules.items() if getattr(args, flag)
    }


def _set_keys(args: SimpleNamespace) -> list[str]:
    return [item.partition("=")[0] for item in args.set]


def _run(loaded: LoadedConfig, *, until_eof: bool) -> int:
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:  # not on Windows; the standard loop serves as well, slower
        return asyncio.run(_serve(loaded, until_eof=until_eof))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(loaded, until_eof=until_eof))


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


async def _serve(loaded: LoadedConfig, *, until_eof: bool) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    if until_eof:
        loop.add_reader(STDIN, stopping.set)  # nothing is ever written there
    pause_collection()
    # Imported late: it brings the kernels along, which other commands need not wait for.
    from keylane.proxy.server import ProxyServer  # noqa: PLC0415

    server = ProxyServer(loaded.config, loaded.origins)
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
