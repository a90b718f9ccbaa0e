"""The picture of waits: percentiles over time, and a heat map of lanes over time."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from keylane.pipeline.waits.lag import COMMIT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keylane.pipeline.waits.job import LagReport

LINES: Final = {"p50_ms": "#8fb3d9", "p90_ms": "#4878a8", "p99_ms": "#c8553d"}
TICKS_MAX: Final = 8


def draw_waits(report: LagReport) -> Figure:
    """Above p50, p90 and p99 until the commit by slice of produce time, below p99 by lane."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    slices = sorted({int(row["slice"]) for row in report.cells})
    lanes = sorted({_lane(row) for row in report.cells})
    height = 2.2 + 0.22 * max(len(lanes), 4)
    figure = Figure(figsize=(10, 2.4 + height), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2.4, height]})
    figure.suptitle(_title(report), fontsize=10)
    at = {start: place for place, start in enumerate(slices)}
    _draw_lines(above, report, at)
    values = [[float("nan")] * len(slices) for _ in lanes]
    rows = {lane: place for place, lane in enumerate(lanes)}
    for row in report.cells:
        if row["p99_ms"] is not None:
            # A wait of nothing, or below, has no place on a logarithmic scale: the least colour.
            values[rows[_lane(row)]][at[int(row["slice"])]] = max(float(row["p99_ms"]), 1.0) / 1000
    found = [value for line in values for value in line if not math.isnan(value)]
    if found:
        norm = LogNorm(min(found), max(*found, min(found) * 1.01))
        mesh = below.imshow(values, aspect="auto", norm=norm, cmap="viridis", interpolation="none")
        bar = figure.colorbar(mesh, ax=below, label="p99 wait until the commit, s")
        _plain(bar.ax.yaxis, range(1, 10))
    below.set_yticks(range(len(lanes)), [_name(lane, lanes) for lane in lanes], fontsize=6)
    below.set_ylabel("partition / start of the lane in the hash space")
    step = max(1, -(-len(slices) // TICKS_MAX))
    shown = slices[::step]
    below.set_xticks([at[start] for start in shown], [_clock(start) for start in shown], fontsize=7)
    below.set_xlabel("produced at (UTC)")
    return figure


def picture_files(figure: Figure) -> dict[str, bytes]:
    """The picture as PNG and as SVG, by file name."""
    files = {}
    for kind in ("png", "svg"):
        sink = io.BytesIO()
        # No date in the file: the same waits give the same bytes.
        figure.savefig(sink, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else {})
        files[f"lag.{kind}"] = sink.getvalue()
    return files


def _draw_lines(axis: Any, report: LagReport, at: Mapping[int, int]) -> None:
    rows = [
        row
        for row in report.groups
        if row["by"] == "slice" and row["figure"] == COMMIT and row["known"] and row["slice"] in at
    ]
    rows.sort(key=lambda row: int(row["slice"]))
    for name, color in LINES.items():
        axis.plot(
            [at[row["slice"]] for row in rows],
            [row[name] / 1000 for row in rows],
            color=color,
            marker="o",
            markersize=3,
            label=name.removesuffix("_ms"),
        )
    if rows and all(row[name] > 0 for row in rows for name in LINES):
        axis.set_yscale("log")
        _plain(axis.yaxis, (1, 2, 5))
    axis.set_ylabel("wait, s")
    axis.grid(visible=True, alpha=0.3)
    axis.legend(fontsize=7, loc="best")


def _plain(axis: Any, marked: Sequence[int]) -> None:
    """Mark these multiples of each power of ten, without exponents."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=list(map(float, marked))))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def _title(report: LagReport) -> str:
    row = report.totals.get(COMMIT, {})
    return (
        f"{report.topic}: waits of {row.get('known', 0):,} records from produce to commit"
        f" ({row.get('records', 0):,} read)"
    )


def _lane(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["p"], row["lo"], row["hi"]


def _name(lane: tuple[int, int, int], lanes: Sequence[tuple[int, int, int]]) -> str:
    p, lo, _ = lane
    return f"{p} / {lo / 2**63:.3f}" if len(lanes) > 1 else f"{p}"


def _clock(start: int) -> str:
    return datetime.fromtimestamp(start, UTC).strftime("%m-%d %H:%M")
