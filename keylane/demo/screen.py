"""The view of the show: live in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from keylane.demo.ledger import Check, Counts

STORY_LINES: Final = 8
PLAIN_INTERVAL_S: Final = 2.0
COLORS: Final = (
    "cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_green",
    "bright_magenta", "bright_yellow", "bright_blue", "white",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemberView:
    """One row of the members' table."""

    number: int
    client: str
    state: str
    """reading, joining, killed, left or failed."""
    lanes: tuple[int, ...]
    rate_per_s: float
    records: int
    behind: int
    load: float
    """Part of all records that came on its lanes."""


@dataclass(frozen=True, slots=True)
class ScreenView:
    """A moment of the show."""

    elapsed_s: float
    title: str
    members: tuple[MemberView, ...]
    owners: tuple[tuple[int | None, ...], ...]
    """Member that reads each lane, a row per partition; None: no member at this moment."""
    produced: int
    delivered: int
    rate_per_s: float
    keys: int
    counts: Counts
    excess: float | None
    """Load of the busiest member, in times of what keys allow; None: a lane has no member."""


class LiveScreen:
    """A view that is drawn over itself."""

    def __init__(self, console: Console) -> None:
        self._story: deque[str] = deque(maxlen=STORY_LINES)
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def say(self, elapsed_s: float, text: str) -> None:
        """Add a line to the story; seen with the next update."""
        self._story.append(f"{elapsed_s:5.1f} s  {text}")

    def update(self, view: ScreenView) -> None:
        """Draw."""
        self._live.update(render_view(view, tuple(self._story)), refresh=True)

    def close(self) -> None:
        """Leave the last picture where it is."""
        self._live.stop()


class PlainScreen:
    """Lines, one after the other: for a log file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_s = -PLAIN_INTERVAL_S

    def say(self, elapsed_s: float, text: str) -> None:
        """Print at once."""
        print_line(self._console, f"{elapsed_s:6.1f} s  {text}")

    def update(self, view: ScreenView) -> None:
        """Print a line now and then."""
        if view.elapsed_s - self._last_s >= PLAIN_INTERVAL_S:
            self._last_s = view.elapsed_s
            print_line(self._console, f"{view.elapsed_s:6.1f} s  {describe_view(view)}")

    def close(self) -> None:
        """Nothing is open."""


Screen = LiveScreen | PlainScreen


def print_line(console: Console, text: str) -> None:
    """Print a text as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def describe_view(view: ScreenView) -> str:
    """One line of plain text."""
    reading = sum(member.state == "reading" for member in view.members)
    counts = view.counts
    again = counts.after_kill + counts.after_failed_commit
    balance = "" if view.excess is None else f", busiest member {view.excess:.2f} x ideal load"
    return (
        f"  {reading} members read, {view.rate_per_s:,.0f} records/s, produced {view.produced:,}, "
        f"processed {view.delivered:,}, out of order {counts.out_of_order}, "
        f"redelivered {again:,}{balance}"
    )


def render_view(view: ScreenView, story: Sequence[str]) -> RenderableType:
    """The whole picture."""
    body = Group(
        _render_totals(view),
        Text(),
        _render_members(view.members),
        Text(),
        *_render_lanes(view.owners, view.excess),
        Text(),
        *(Text(line, style="dim") for line in story[:-1]),
        *(Text(line, style="bold") for line in story[-1:]),
        # The frame keeps its height: a picture that grows is drawn in the wrong place.
        *(Text() for _ in range(STORY_LINES - len(story))),
    )
    return Panel(body, title=f"{view.title}   {view.elapsed_s:.0f} s", title_align="left")


def render_verdict(checks: Sequence[Check]) -> RenderableType:
    """The final table."""
    table = Table(title="verdict", title_justify="left", show_header=False)
    table.add_column("check")
    table.add_column("value", justify="right")
    table.add_column("result")
    for check in checks:
        result = Text("ok", style="green") if check.passed else Text("FAILED", style="bold red")
        table.add_row(check.name, check.value, result)
    return table


def _render_totals(view: ScreenView) -> RenderableType:
    counts = view.counts
    bad = counts.out_of_order + counts.two_at_once
    again = counts.unexplained + counts.after_commit
    table = Table.grid(padding=(0, 3))
    table.add_row(
        f"produced {view.produced:,}",
        f"processed {view.delivered:,}",
        f"waiting {max(0, view.produced - view.delivered):,}",
        f"{view.rate_per_s:,.0f} records/s",
    )
    table.add_row(
        Text(f"{view.keys:,} keys, {bad} out of order", style="red" if bad else "green"),
        Text(f"duplicates {again:,}", style="red" if again else "green"),
        Text(f"redelivered after kill {counts.after_kill:,}"),
        Text(f"after a failed commit {counts.after_failed_commit:,}"),
    )
    return table


def _render_members(members: Sequence[MemberView]) -> RenderableType:
    table = Table(expand=True, box=None, pad_edge=False)
    for name in ("member", "client", "state"):
        table.add_column(name)
    for name in ("lanes", "load", "records/s", "records", "behind"):
        table.add_column(name, justify="right")
    for member in members:
        gone = member.state not in {"reading", "joining"}
        table.add_row(
            f"{member.number}",
            member.client,
            member.state,
            f"{len(member.lanes)}",
            f"{member.load:.1%}",
            f"{member.rate_per_s:,.0f}",
            f"{member.records:,}",
            f"{member.behind:,}",
            style="dim" if gone else color_of(member.number),
        )
    return table


def _render_lanes(owners: Sequence[Sequence[int | None]], excess: float | None) -> list[Text]:
    rows = []
    for partition, lanes in enumerate(owners):
        row = Text(f"partition {partition}  ")
        for owner in lanes:
            cell = f"{owner:>3}" if owner is not None else "  ."
            row.append(cell, style=color_of(owner) if owner is not None else "dim")
        rows.append(row)
    title = "which member reads which lane"
    if excess is not None:
        title += f"; the busiest member has {excess:.2f} x the load that keys allow"
    return [Text(title, style="dim"), *rows]


def color_of(member: int) -> str:
    """Color of a member, the same everywhere."""
    return COLORS[(member - 1) % len(COLORS)]
