"""The picture of a profile: load over the hash space, with the lanes drawn in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from keylane.assignor.cut_planner import lane_loads
from keylane.assignor.profile import LoadProfile
from keylane.assignor.range_plan import RangePlan
from keylane.keyrange.key_split import KeySplit
from keylane.keyrange.space import HASH_MAX

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTITIONS_SHOWN: Final = 12
"""The heaviest; more would be too low to read."""
BARS: Final = 256
"""Buckets are summed to this many bars: as many as a screen shows apart."""
LOAD_COLOR: Final = "#4878a8"
BUSIEST_COLOR: Final = "#c8553d"
CUT_COLOR: Final = "#333333"


def draw_load(profile: LoadProfile, plan: RangePlan) -> Figure:
    """A row per partition: bytes over the hash space, cuts as lines, the busiest lane marked."""
    from matplotlib.figure import Figure

    weights = [sum(load.size_bytes) for load in profile.partitions]
    order = sorted(range(len(weights)), key=lambda number: (-weights[number], number))
    shown = sorted(order[:PARTITIONS_SHOWN])
    figure = Figure(figsize=(10, 1.6 + 1.1 * len(shown)), layout="constrained")
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)
    for number, axis in zip(shown, axes[:, 0], strict=True):
        _draw_partition(axis, profile, number, plan)
    axes[-1, 0].set_xlabel("key hash, as a share of the hash space")
    figure.suptitle(_title(profile, plan, len(shown)), fontsize=10)
    return figure


def _draw_partition(axis: Any, profile: LoadProfile, number: int, plan: RangePlan) -> None:
    load = profile.partitions[number].size_bytes
    bars = _summed(load, min(BARS, profile.bucket_count))
    places = [place / len(bars) for place in range(len(bars))]
    axis.bar(places, bars, width=1 / len(bars), align="edge", color=LOAD_COLOR, linewidth=0)
    axis.set_yscale("symlog", linthresh=max(1.0, sum(bars) / len(bars) / 10))
    axis.set_ylabel(f"p{number}\nbytes", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.set_xlim(0, 1)
    axis.margins(y=0.1)
    cuts = plan.cuts[number]
    for cut in cuts:
        axis.axvline(cut / HASH_MAX, color=CUT_COLOR, linewidth=0.7)
    lanes = lane_loads(profile, number, cuts)
    busiest = max(range(len(lanes)), key=lanes.__getitem__)
    part = KeySplit(cuts).key_range(busiest)
    axis.axvspan(part.lo / HASH_MAX, part.hi / HASH_MAX, color=BUSIEST_COLOR, alpha=0.25)
    share = lanes[busiest] / max(sum(lanes) / len(lanes), 1)
    axis.text(
        (part.lo + part.hi) / 2 / HASH_MAX,
        0.95,
        f"{share:.2f} x mean",
        transform=axis.get_xaxis_transform(),
        ha="center",
        va="top",
        fontsize=7,
        color=BUSIEST_COLOR,
    )


def _title(profile: LoadProfile, plan: RangePlan, shown: int) -> str:
    count = len(profile.partitions)
    rest = f" (the {shown} heaviest of {count} partitions)" if shown < count else ""
    return (
        f"{profile.topic}: {profile.records:,} records, {profile.size_bytes:,} bytes,"
        f" {plan.lane_count} lanes per partition{rest}"
    )


def _summed(load: Sequence[int], count: int) -> list[int]:
    width = len(load) // count
    return [sum(load[place * width : (place + 1) * width]) for place in range(count)]
