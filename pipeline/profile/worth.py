"""The worth of plans in hours and days that differ, as text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from keylane.assignor.hourly import ALL_HOURS, HourReport
from keylane.pipeline.profile.hour_index import HourIndex


def describe_hours(report: HourReport, index: HourIndex) -> str:
    """Return the busiest lane of any hour under each of the plans, and under plans of days."""
    days = index.days()
    older = " (the newest; older ones are left out)" if index.is_cut else ""
    head = f"by hour: {len(index.starts)} hours of {len(days)} days in {index.zone}{older};"
    lines = [f"{head} the busiest lane of any hour, if cut by"]
    least = report.worst(ALL_HOURS)[1]
    for name in report.busiest:
        if name in days:
            continue
        hour, size = report.worst(name)
        note = f"{size / max(least, 1):.2f} times that"
        if name == ALL_HOURS:
            note = "the least that one plan can have"
        lines.append(f"  {name}: {size:,} bytes at {index.label(hour)}, {note}")
    floor = max(report.best.values())
    lines.append(f"  each hour anew: {floor:,} bytes, {floor / max(least, 1):.2f} times that")
    fits = list(next_day_fits(report, index))
    if fits:
        ratio, day, after = max(fits)
        lines.append(
            f"  a day's plan on the next day: at worst {ratio:.2f} times the busiest lane that the"
            f" next day's own plan has (cut by {day}, in {after})"
        )
    return "\n".join(lines)


def next_day_fits(report: HourReport, index: HourIndex) -> Iterator[tuple[float, str, str]]:
    """The busiest lane of a day's worst hour under the plan of the day before, times its own's."""
    days = index.days()
    for day, after in pairwise(days):
        own = report.worst(after, days[after])[1]
        yield report.worst(day, days[after])[1] / max(own, 1), day, after
