"""`keylane check`: whether a node could start and serve, without starting one.

Exit codes: 0 it could (warnings may be there), 1 something is wrong, 2 bad configuration.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from keylane.cli.columns import Painted, align, has_colors
from keylane.cli.control_client import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    HOSTS_VARIABLE,
    KEY_VARIABLE,
    TOKEN_VARIABLE,
)
from keylane.cli.figures import BAD, DASH
from keylane.cli.output import output_option, show
from keylane.cli.proxy import LOG_VARIABLE, config_options, load_options, log_level
from keylane.config.node import ProxyConfig
from keylane.config.origins import ORIGINS_VARIABLE
from keylane.config.security import PASSWORD_VARIABLE
from keylane.config.sources import ENVIRONMENT_PREFIX
from keylane.proxy.runtime.log_setup import muted_log
from keylane.usage import HELP_NAMES

if TYPE_CHECKING:
    from keylane.proxy.startup.preflight import Finding

COLUMNS: Final = ("STATUS", "SUBJECT", "FINDING")
COLORS: Final[Mapping[str, str]] = {"ok": "green", "warning": "yellow", "error": BAD}
OTHER_VARIABLES: Final = frozenset({
    CA_VARIABLE, CERTIFICATE_VARIABLE, HOSTS_VARIABLE, KEY_VARIABLE, LOG_VARIABLE,
    ORIGINS_VARIABLE, PASSWORD_VARIABLE, TOKEN_VARIABLE,
})  # fmt: skip
"""Variables that are no keys."""
NEAR: Final = 0.85
"""Likeness from which a variable is a misspelt key: a Service named keylane has variables, too."""


@click.command(
    "check",
    context_settings=dict(HELP_NAMES),
    short_help="Check configuration, Kafka, rights, ports and rules, without a start.",
)
@config_options()
@click.option("--offline", is_flag=True, help="Ask no broker: configuration and ports alone.")
@click.option("--no-ports", is_flag=True, help="Leave the ports out: a node listens there now.")
@output_option()
def check_command(**options: Any) -> int:
    """Check whether a node with this configuration could start and serve.

    Looks at the configuration, at brokers and their versions, at the rights of keylane's
    principal, at ports, and at the topics of each lane rule. Changes nothing. Exit status 0: it
    could, 1: something is wrong, 2: bad configuration.
    """
    args = SimpleNamespace(**options)
    log_level(os.environ)
    config = load_options(args).config
    # Late: it brings the kernels along, and a wrong configuration is found before.
    from keylane.proxy.startup.preflight import Finding, Status, worst  # noqa: PLC0415

    found = [Finding(status=Status.OK, subject="configuration", text=_summary(config))]
    found += [
        Finding(status=Status.WARNING, subject="configuration", text=text)
        for text in misspelt_variables(os.environ)
    ]
    with muted_log():  # what parts would log stands in the findings
        found += asyncio.run(_look(config, is_offline=args.offline, with_ports=not args.no_ports))
    report = {
        "status": worst(found).value,
        # A StrEnum is a string to JSON, but not to YAML.
        "findings": [asdict(each) | {"status": each.status.value} for each in found],
    }
    show(report, args.output, lambda: render(found))
    return 1 if worst(found) is Status.ERROR else 0


async def _look(config: ProxyConfig, *, is_offline: bool, with_ports: bool) -> list[Finding]:
    from keylane.proxy.startup.preflight import look_at_kafka, look_at_ports  # noqa: PLC0415

    found, brokers = ([], list[int]()) if is_offline else await look_at_kafka(config)
    return [*found, *(await look_at_ports(config, brokers) if with_ports else ())]


def misspelt_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable that looks like that of a key and is none."""
    known = {f"{ENVIRONMENT_PREFIX}{key.upper()}" for key in ProxyConfig.model_fields}
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in known:
            continue
        near = get_close_matches(name, known, n=1, cutoff=NEAR)
        if near and name not in OTHER_VARIABLES:
            yield f"{name}: no such key, it counts for nothing; did you mean {near[0]}?"


def render(found: Sequence[Finding]) -> str:
    """Return the findings as a table, with the remedy below each that needs one."""
    colors = has_colors()
    rows = [(Painted(each.status, COLORS[each.status]), each.subject, each.text) for each in found]
    head, *lines = align([COLUMNS, *rows], is_colored=colors)
    shown = [head]
    for each, line in zip(found, lines, strict=True):
        shown.append(line)
        if each.remedy:
            shown.append(f"{DASH * 2} {each.remedy}")
    return "\n".join(shown)


def _summary(config: ProxyConfig) -> str:
    rules = [f"{rule.topic}={rule.lanes or rule.plan}" for rule in config.lanes]
    return f"bootstrap {config.bootstrap}, listen {config.listen}, lanes {', '.join(rules) or DASH}"
