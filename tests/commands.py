"""The arguments of a command, read as `keylane` reads them, without running it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import click

from keylane.cli.main import keylane


def parse_command(argv: Sequence[str]) -> SimpleNamespace:
    """Return the values of a command's options. Raises: click.UsageError."""
    command: click.Command = keylane
    context, words = click.Context(keylane, info_name="keylane"), list(argv)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    return SimpleNamespace(**command.make_context(context.info_name, words, parent=context).params)
