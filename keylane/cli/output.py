"""Forms in which commands print: a table, JSON or YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import yaml

Command = TypeVar("Command", bound=Callable[..., Any])


def output_option(
    *, forms: Sequence[str] = ("table", "json", "yaml")
) -> Callable[[Command], Command]:
    """Add `-o`, which `show` takes."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms),
        default=forms[0],
        show_default=True,
        help="Form of what is printed.",
    )


def show(report: object, form: str, table: Callable[[], str]) -> None:
    """Print a report; `table` makes the text of the form `table`."""
    if form == "json":
        click.echo(json.dumps(report, indent=2))
    elif form == "yaml":
        click.echo(yaml.safe_dump(report, sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(table(), color=True)  # colours are left out where the table is made
