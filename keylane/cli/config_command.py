"""`keylane config`: every key with its default, its value in force, and the place that set it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, Final

import click

from keylane.cli.columns import Painted, align, has_colors
from keylane.cli.control_client import ControlPort, trust_options
from keylane.cli.figures import DASH
from keylane.cli.output import output_option, show
from keylane.cli.proxy import config_options, load_options
from keylane.config.explain import explain
from keylane.config.security import PASSWORD_VARIABLE
from keylane.usage import HELP_NAMES

COLUMNS: Final = ("KEY", "VALUE", "DEFAULT", "FROM", "ALSO CALLED")
VALUE_SHOWN_MAX: Final = 60
CHANGED: Final = "cyan"
NEEDED: Final[Mapping[str, str]] = {"bootstrap": "localhost:9092"}
"""Stands in for what a node could not start without: the keys are shown even so."""


@click.command(
    "config",
    context_settings=dict(HELP_NAMES),
    short_help="Every key with its default, its value in force, and where that comes from.",
)
@config_options(control="Control port of a node that runs: show what it has.")
@click.option("--changed", is_flag=True, help="Only keys that are not at their default.")
@output_option()
@trust_options
def config_command(**options: Any) -> int:
    """Show every key of the configuration: its value, its default, and the place that set it.

    By --config, the environment and the other flags, as `keylane proxy` would read them; or of a
    node that runs, with --control HOST:PORT. Secrets are masked.
    """
    args = SimpleNamespace(**options)
    report = _of_flags(args) if args.control is None else ControlPort.of(args).get("/config")
    if args.changed:
        report["keys"] = [each for each in report["keys"] if _is_changed(each)]
    show(report, args.output, lambda: render(report))
    return 0


def render(report: Mapping[str, Any]) -> str:
    """Return the keys as a table."""
    rows = [
        (
            Painted(each["key"], CHANGED) if _is_changed(each) else each["key"],
            _text(each["value"]),
            "required" if each.get("is_required") else _text(each["default"]),
            each["place"] or each.get("adjusted_by") or each["source"],
            ", ".join(each["aliases"]) or DASH,
        )
        for each in report["keys"]
    ]
    return "\n".join(align([COLUMNS, *rows], is_colored=has_colors()))


def _of_flags(args: SimpleNamespace) -> dict[str, Any]:
    loaded = load_options(args, needed=NEEDED)
    report = asdict(explain(loaded, has_password=PASSWORD_VARIABLE in os.environ))
    for each in report["keys"]:
        if each["key"] in NEEDED and each["source"] == "default":
            each["value"] = None
    plain: dict[str, Any] = json.loads(json.dumps(report))  # lists in the place of tuples
    return plain


def _is_changed(key: Mapping[str, Any]) -> bool:
    return bool(key["source"] != "default" or key.get("adjusted_by"))


def _text(value: object) -> str:
    if value is None or value == []:
        return DASH
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[: VALUE_SHOWN_MAX - 3]}..."
