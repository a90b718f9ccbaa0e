"""`keylane advise`: would keylane help a topic, how far, and at what cost.

Exit codes: 0 advice was given, whatever its verdict; 1 none could be; 2 bad input.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from keylane.cli.output import output_option, show
from keylane.errors import ConfigInvalid
from keylane.pipeline.arguments import conf_option
from keylane.pipeline.storage import FOLDER
from keylane.usage import FILE, HELP_NAMES

SAMPLE: Final = 200_000
"""Records: a key with a thousandth of them is seen 200 times, which is 7 % of error."""
SAMPLE_MAX: Final = 20_000_000
BYTES_MAX: Final = 512 << 20
"""Bytes that brokers send for a sample."""
SECONDS: Final = 30.0
WATCH_S: Final = 6.0
"""Longer than Kafka's `auto.commit.interval.ms`, so that a group's offsets move."""
MEMBERS_MAX: Final = 10_000
REQUEST_TIMEOUT_MS: Final = 15_000
UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)")
EXAMPLES: Final = "such as 10ms, 1.5s, 30m, 2h or 7d"


class Duration(click.ParamType[float]):
    """A time with its unit, in seconds."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number and its unit; one line names what is wrong."""
        found = _DURATION.fullmatch(str(value))
        seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is no time above 0, {EXAMPLES}", param, ctx)
        return seconds


@click.command(
    "advise",
    context_settings=dict(HELP_NAMES),
    short_help="Would keylane help a topic, how far, and at what cost.",
)
@click.option("--bootstrap", metavar="HOST:PORT", help="Kafka's own brokers, not keylane.")
@click.option("--topic", metavar="NAME", help="The topic that is too slow.")
@click.option("--group", metavar="NAME", help="Its consumers: their rate and lag.")
@click.option(
    "--work", type=Duration(), metavar="TIME", help="Time that a record takes, such as 10ms."
)
@click.option(
    "--members",
    type=click.IntRange(1, MEMBERS_MAX),
    metavar="N",
    help="Members on lanes; without it as many as the topic needs.",
)
@click.option(
    "--lanes",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Lanes per partition; without it the fewest that are good.",
)
@click.option(
    "--sample",
    type=click.IntRange(1, SAMPLE_MAX),
    default=SAMPLE,
    show_default=True,
    metavar="N",
    help="Records to read, spread over all partitions and the whole log.",
)
@click.option(
    "--since",
    type=Duration(),
    metavar="TIME",
    help="Read only records of the last 2h, for example.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=SECONDS,
    show_default=True,
    help="Longest time to read.",
)
@click.option(
    "--watch",
    type=click.FloatRange(0.1, 3600),
    default=WATCH_S,
    show_default=True,
    help="Seconds between two looks at offsets, for rates.",
)
@click.option(
    "--profile",
    type=FOLDER,
    metavar="PROFILE.JSON",
    help="In the place of a sample: what `keylane spark profile` made, or its folder; a path or"
    " a URI.",
)
@conf_option
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE.SVG",
    help="Draw the speed-up over members, as .svg or .png.",
)
@click.option(
    "--config",
    type=FILE,
    metavar="KEYLANE.YAML",
    help="keylane's configuration: its TLS and login to the brokers are used.",
)
@output_option(forms=("text", "json", "yaml"))
def advise_command(**options: Any) -> int:
    """Say whether lanes would speed up the consumers of a topic, how far, and at what cost.

    A sample of the topic is read. No group is joined, and no offset is committed.
    """
    # Late: kernels and codecs are loaded for a command that runs, and not for its help.
    from keylane.advise.advice import AdviceQuestion, give_advice  # noqa: PLC0415
    from keylane.advise.plot import check_plot, save_plot  # noqa: PLC0415
    from keylane.advise.report import document_of, render  # noqa: PLC0415

    plot: Path | None = options["plot"]
    if plot is not None:
        check_plot(plot)
    evidence = _of_profile(options) if options["profile"] else _of_brokers(options)
    advice = give_advice(
        AdviceQuestion(
            bootstrap=options["bootstrap"] or "HOST:PORT",
            work_s=options["work"],
            members=options["members"],
            lanes=options["lanes"],
        ),
        evidence,
    )
    if plot is not None:
        save_plot(advice, plot)
    show(document_of(advice), options["output"], lambda: render(advice))
    return 0


def _of_profile(options: dict[str, Any]) -> Any:
    from keylane.advise.advice import Evidence  # noqa: PLC0415
    from keylane.advise.keys import keys_of_profile  # noqa: PLC0415
    from keylane.cli.plan import load_profile  # noqa: PLC0415
    from keylane.pipeline.places import open_places  # noqa: PLC0415

    if options["group"]:
        raise ConfigInvalid("--group: a profile has no groups; omit --profile to ask the brokers")
    path = options["profile"]
    with open_places("keylane advise", options["conf"]) as places:
        profile = load_profile(places, path)
    if options["topic"] not in (None, profile.topic):
        raise ConfigInvalid(
            f"--profile {path}: is of topic {profile.topic}, not {options['topic']}"
        )
    if not profile.records:
        raise ConfigInvalid(f"--profile {path}: it has no records")
    counts = [load.distinct_keys for load in profile.partitions]
    known = None if None in counts else float(sum(filter(None, counts)))
    return Evidence(keys=keys_of_profile(profile), distinct_keys=known)


def _of_brokers(options: dict[str, Any]) -> Any:
    from keylane.advise.fetching import Bounds  # noqa: PLC0415
    from keylane.advise.reader import Scope, read_evidence  # noqa: PLC0415
    from keylane.proxy.runtime.log_setup import muted_log  # noqa: PLC0415

    for name in ("bootstrap", "topic"):
        if not options[name]:
            raise ConfigInvalid(f"--{name}: needed, or --profile in the place of a sample")
    for text in map(str.strip, options["bootstrap"].split(",")):
        if not _is_address(text):
            raise ConfigInvalid(f"--bootstrap {text}: expected HOST:PORT")
    since_s = options["since"]
    scope = Scope(
        topic=options["topic"],
        group=options["group"],
        bounds=Bounds(
            records_max=options["sample"], bytes_max=BYTES_MAX, seconds_max=options["seconds"]
        ),
        watch_s=options["watch"],
        since_ms=None
        if since_s is None
        else int((time.clock_gettime(time.CLOCK_REALTIME) - since_s) * 1000),
    )
    with muted_log():  # what fails is said in one line, at the end
        return asyncio.run(read_evidence(_settings(options), scope, _report))


def _is_address(text: str) -> bool:
    """Return whether the client takes this for a broker: without a port, it is Kafka's 9092."""
    from keylane.config.node import split_address  # noqa: PLC0415

    behind = text.rpartition("]")[2]  # the whole text, if its host has no brackets
    if "[" in behind:
        return False
    if ":" not in behind:
        return True
    with suppress(OSError, ValueError):  # IPv6 without brackets, and so without a port
        socket.inet_pton(socket.AF_INET6, text)
        return True
    with suppress(ValueError):
        split_address(text)
        return True
    return False


def _settings(options: dict[str, Any]) -> Any:
    """Return the settings of a consumer without a group, with the TLS and login of --config."""
    from keylane.client.settings import ConsumerSettings  # noqa: PLC0415

    security: dict[str, Any] = {}
    if options["config"] is not None:
        from keylane.config.sources import load_config  # noqa: PLC0415
        from keylane.proxy.net.security.node_security import Security  # noqa: PLC0415

        flags = {"bootstrap": options["bootstrap"]}
        config = load_config(path=options["config"], environment=os.environ, flags=flags).config
        security = Security(config).aiokafka_options()
    return ConsumerSettings(
        bootstrap_servers=options["bootstrap"],
        client_id="keylane-advise",
        isolation_level="read_committed",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        **security,
    )


def _report(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"keylane advise: {text}", err=True)
