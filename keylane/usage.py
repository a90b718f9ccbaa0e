"""Common parts of the commands: options that exclude each other, and pairs.

A command raises `click.UsageError` for arguments that do not fit and `KeylaneError` for all else;
`keylane.cli.main` makes one line and an exit code of either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

FILE: Final = click.Path(path_type=Path)
"""A path; whether it can be used is found out when it is."""
HELP_NAMES: Final[Mapping[str, Any]] = {"help_option_names": ["-h", "--help"]}


def expect_one(given: Mapping[str, object], *, is_needed: bool = True) -> None:
    """Raises: UsageError, unless one of these options is given (at most one, if none is needed).

    given: the values of options by their names; None, False and an empty list are not given.
    """
    present = [name for name, value in given.items() if is_given(value)]
    if len(present) > 1:
        raise click.UsageError(f"{present[1]}: cannot stand beside {present[0]}")
    if is_needed and not present:
        raise click.UsageError(f"{_or(list(given))} is missing")


def is_given(value: object) -> bool:
    """Return whether an option has a value; 0 is one."""
    return value is not None and value is not False and value != ()


def split_pair(flag: str, text: str, form: str = "KEY=VALUE") -> tuple[str, str]:
    """Split `KEY=VALUE`. Raises: UsageError, which does not repeat a value."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.UsageError(f"{flag} {key}: expected {form}")
    return key, value


def _or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
