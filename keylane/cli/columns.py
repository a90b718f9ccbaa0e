"""Text in columns, for commands that print tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def align(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a line for each row, with its cells in columns."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
