"""Result of a scenario: a table, its targets, and every run behind them.

In:    figures of runs.  Out: `Outcome`, as JSON for the result file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.end_to_end.stage import Spread


@dataclass(frozen=True, slots=True)
class Target:
    """One line of what must show."""

    text: str
    measured: float
    bound: float
    is_upper: bool
    """`measured` must be at most `bound`; otherwise at least."""
    digits: int = 2

    @property
    def holds(self) -> bool:
        """Return whether it was reached in this run."""
        return self.measured <= self.bound if self.is_upper else self.measured >= self.bound

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        return asdict(self) | {"holds": self.holds}


@dataclass(slots=True)
class Outcome:
    """One scenario."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    """Every run, by way and figure."""

    def keep(self, way: str, **figures: Sequence[float]) -> None:
        """Note the runs of one way."""
        self.raw[way] = {
            name: [round(value, 5) for value in values] for name, values in figures.items()
        }

    def target(
        self, text: str, measured: float, *, at_most: float | None = None, at_least: float = 0.0
    ) -> None:
        """Note how a target fared."""
        bound = at_least if at_most is None else at_most
        self.targets.append(Target(text, measured, bound, at_most is not None))

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": self.columns,
            "rows": self.rows,
            "targets": [target.as_json() for target in self.targets],
            "notes": self.notes,
            "raw": self.raw,
        }


def spread(values: Sequence[float], digits: int = 2) -> str:
    """`median (lowest-highest)`, or a dash when there is nothing."""
    return Spread(tuple(values)).text(digits) if values else "-"


def median(values: Sequence[float]) -> float:
    """The figure to quote."""
    return Spread(tuple(values)).median


def ratios(values: Sequence[float], bases: Sequence[float]) -> list[float]:
    """Return each run's ratio to the base of the same round."""
    return [value / base for value, base in zip(values, bases, strict=True)]
