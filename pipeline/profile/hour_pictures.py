"""Pictures of load by hour: the hash space by hour of the day, and the worth of plans over time."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from keylane.assignor.hourly import ALL_HOURS, EVEN, WHOLE_RANGE, HourLoads, HourReport
from keylane.assignor.profile import LoadProfile
from keylane.assignor.range_plan import RangePlan
from keylane.keyrange.space import HASH_MAX
from keylane.pipeline.profile.hour_index import HourIndex
from keylane.pipeline.profile.picture import BARS, BUSIEST_COLOR, CUT_COLOR, LOAD_COLOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTITIONS_SHOWN: Final = 6
HOURS_A_DAY: Final = 24
MAP: Final = "Blues"
OTHER_COLORS: Final = ("#3a7d44", "#8d5a97")
FAINT_COLOR: Final = "#999999"


class HourFold:
    """Bytes by hour of the day and part of the hash space, of the heaviest partitions.

    Holds 24 x 256 numbers for each of `shown`.
    """

    def __init__(self, profile: LoadProfile, index: HourIndex) -> None:
        weights = [sum(load.size_bytes) for load in profile.partitions]
        order = sorted(range(len(weights)), key=lambda number: (-weights[number], number))
        bars = min(BARS, profile.bucket_count)
        self.sums: dict[int, Any] = {
            number: np.zeros((HOURS_A_DAY, bars)) for number in sorted(order[:PARTITIONS_SHOWN])
        }
        self.index = index
        self._number = 0

    def add(self, own: HourLoads) -> HourLoads:
        """Take the next partition, and return it."""
        sums = self.sums.get(self._number)
        self._number += 1
        if sums is not None:
            for start, row in zip(own.starts, own.rows, strict=True):
                parts = np.array(row).reshape(sums.shape[1], -1).sum(axis=1)
                sums[self.index.time(start).hour] += parts
        return own


def draw_hours(profile: LoadProfile, fold: HourFold, plan: RangePlan) -> Figure:
    """A map for each partition: bytes by hash space and hour of the day; cuts are marks above."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    shown = fold.sums
    figure = Figure(figsize=(10, 1.6 + 1.9 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    top = max(1.0, *(float(sums.max()) for sums in shown.values()))
    # Below a thousandth of the heaviest place there is nothing to cut by.
    lowest = min(float(sums.min()) for sums in shown.values())
    least = max(1.0, top / 1_000, lowest)
    norm = LogNorm(vmin=least, vmax=max(top, 10.0))
    picture: Any = None
    for axis, (number, sums) in zip(axes, shown.items(), strict=True):
        picture = axis.imshow(
            np.maximum(sums, least),
            aspect="auto",
            cmap=MAP,
            norm=norm,
            extent=(0, 1, HOURS_A_DAY, 0),
            interpolation="nearest",
        )
        places = [cut / HASH_MAX for cut in plan.cuts[number]]
        marks = {"marker": "v", "markersize": 4, "color": BUSIEST_COLOR, "clip_on": False}
        axis.plot(places, [0] * len(places), linestyle="none", zorder=3, **marks)
        axis.set_yticks(range(0, HOURS_A_DAY + 1, 6))
        axis.set_ylabel(f"p{number}\nhour", fontsize=8)
        axis.tick_params(labelsize=7)
    axes[-1].set_xlabel("key hash, as a share of the hash space", fontsize=8)
    bar = figure.colorbar(picture, ax=list(axes), pad=0.01, aspect=40)
    bar.set_label("bytes", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    count = len(profile.partitions)
    rest = f" (the {len(shown)} heaviest of {count} partitions)" if len(shown) < count else ""
    figure.suptitle(
        f"{profile.topic}: load by hour of the day ({fold.index.zone}), {len(fold.index.days())}"
        f" days added up; cuts for all hours, {plan.lane_count} lanes per partition{rest}",
        fontsize=10,
    )
    return figure


def draw_worth(report: HourReport, index: HourIndex) -> Figure:
    """The busiest lane of each hour: under every plan, and if the hour had its own cuts."""
    from matplotlib import dates
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axis = figure.subplots()
    days = index.days()
    # Without its zone: the axis shows the hands of that zone's clock.
    times: list[Any] = [index.time(start).replace(tzinfo=None) for start in index.starts]
    best = [report.best[start] for start in index.starts]
    axis.fill_between(times, best, step="post", color=LOAD_COLOR, alpha=0.2, linewidth=0)
    axis.step(
        times, best, where="post", color=LOAD_COLOR, linewidth=0.8, label="cut anew for each hour"
    )
    others = [name for name in report.busiest if name not in {*days, ALL_HOURS, WHOLE_RANGE, EVEN}]
    styles = [(EVEN, FAINT_COLOR, 0.8), (WHOLE_RANGE, BUSIEST_COLOR, 1.2)]
    styles += list(zip(others, OTHER_COLORS[1:], [1.2] * len(others), strict=False))
    for name, color, width in [*styles, (ALL_HOURS, CUT_COLOR, 1.6)]:
        loads = [report.busiest[name][start] for start in index.starts]
        label = f"cut by {name}" if name != EVEN else "cut evenly"
        axis.step(times, loads, where="post", color=color, linewidth=width, label=label)
    before = _before(report, days)
    if before:
        shown: list[Any] = [index.time(start).replace(tzinfo=None) for start in before]
        axis.step(
            shown,
            list(before.values()),
            where="post",
            color=OTHER_COLORS[0],
            linewidth=1.0,
            linestyle=":",
            label="cut by the day before",
        )
    axis.axhline(report.worst(ALL_HOURS)[1], color=CUT_COLOR, linewidth=0.5, linestyle="--")
    axis.set_ylim(bottom=0)
    axis.margins(x=0)
    axis.set_ylabel("busiest lane, bytes in the hour", fontsize=8)
    calendar: Any = dates  # without types
    locator = calendar.AutoDateLocator()
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(calendar.ConciseDateFormatter(locator))
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=7, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    figure.suptitle(f"Busiest lane by hour ({index.zone}); lower is better", fontsize=10)
    return figure


def _before(report: HourReport, days: dict[str, list[int]]) -> dict[int, int]:
    """The busiest lane of each hour under the plan of the day before."""
    return {
        start: report.busiest[day][start] for day, after in pairwise(days) for start in days[after]
    }
