"""Text in columns, for commands that print tables; in colours on a terminal alone.

Source: no-color.org (NO_COLOR).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import click


class Painted(str):
    """A cell with a colour of `click.style`; without colours it is its text."""

    __slots__ = ("colour",)
    colour: str

    def __new__(cls, text: str, colour: str) -> Self:
        """Make a text with a colour."""
        made = super().__new__(cls, text)
        made.colour = colour
        return made


def align(rows: Iterable[Sequence[str]], *, is_colored: bool = False) -> Iterator[str]:
    """Yield a line for each row, with its cells in columns."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[-1] = cells[-1].rstrip()
        if is_colored:
            cells = list(map(_paint, row, cells))
        yield "  ".join(cells).rstrip()


def has_colors() -> bool:
    """Return whether stdout shows colours, and the user wants them."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def _paint(cell: str, padded: str) -> str:
    return click.style(padded, fg=cell.colour) if isinstance(cell, Painted) else padded
