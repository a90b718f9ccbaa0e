"""The picture of a simulation: what a group does, and how long records wait, over its members."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

from keylane.pipeline.simulate.model import ScenarioResult, Simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS: Final = ("#4878a8", "#c8553d", "#5a9a5a", "#8d6cab", "#b8860b", "#4f9d9d", "#7f7f7f")
TODAY_COLOR: Final = "#333333"
ARRIVING_COLOR: Final = "#999999"
WAIT_FLOOR_MS: Final = 0.1
"""A logarithmic scale has no 0: a wait below this is drawn here."""
FORMATS: Final = ("png", "svg")


def draw(simulation: Simulation) -> Figure:
    """Throughput at the left, queueing times at the right: a line per number of lanes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    by_lanes: dict[int, list[ScenarioResult]] = {}
    for one in simulation.results:
        if one.scenario.way == "keylane":
            by_lanes.setdefault(one.scenario.lanes, []).append(one)
    for place, (lanes, row) in enumerate(sorted(by_lanes.items())):
        _draw_lanes(left, right, row, f"{lanes} lanes", COLORS[place % len(COLORS)])
    today = [one for one in simulation.results if one.scenario.way == "today"]
    _draw_lanes(left, right, today, "today", TODAY_COLOR)
    rate = simulation.request.rate or simulation.facts.rate
    if simulation.request.arrivals == "real" and rate is not None:
        left.axhline(rate, color=ARRIVING_COLOR, linewidth=0.8, linestyle="--", label="arriving")
    left.set_ylim(bottom=0)
    left.set_title("records/s at most", fontsize=10)
    right.set_title("queueing time, ms: p99 (line), p95 (dashes), p50 (dots)", fontsize=10)
    right.set_yscale("log")
    for axis in (left, right):
        axis.set_xlabel("members")
        axis.grid(alpha=0.3)
    left.legend(fontsize=8)
    figure.suptitle(simulation.topic, fontsize=10)
    return figure


def write_picture(figure: Figure, kind: str) -> bytes:
    """Return the picture as one of FORMATS; the same simulation gives the same bytes."""
    from matplotlib import rc_context

    sink = io.BytesIO()
    stamp = {"Date": None} if kind == "svg" else {}
    # Without a salt the names inside an SVG are random.
    with rc_context({"svg.hashsalt": "keylane"}):
        figure.savefig(sink, format=kind, dpi=120, metadata=stamp)
    return sink.getvalue()


def _draw_lanes(left: Any, right: Any, row: list[ScenarioResult], name: str, color: str) -> None:
    members = [one.scenario.members for one in row]
    left.plot(members, [one.capacity for one in row], "o-", color=color, label=name, markersize=4)
    for style, percentile in (("o-", "p99_ms"), ("o--", "p95_ms"), ("o:", "p50_ms")):
        waits = [max(getattr(one.waits, percentile), WAIT_FLOOR_MS) for one in row]
        right.plot(members, waits, style, color=color, markersize=3, linewidth=1)
