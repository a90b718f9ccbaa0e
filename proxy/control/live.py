"""Data of the live page: lanes, their load, their members and lag, in a compact form.

Lists go by lane index, so that 10,000 lanes are three lists and not 10,000 objects. Hashes are
decimal strings, because numbers beyond 2^53 do not survive JavaScript.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Final

import keylane
from keylane.proxy.control.describe import GroupReport
from keylane.proxy.control.lane_reports import LaneReport
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.view import View

NO_MEMBER: Final = -1
RATES: Final = {
    "records_per_s": "records",
    "upstream_bytes_per_s": "upstream_bytes",
    "lane_bytes_per_s": "lane_bytes",
}
"""Rates that are shown, by the counters that they are taken from."""
GAUGES: Final = (
    *("sessions", "readers", "cache_bytes", "cache_bytes_max"),
    *("filtering_bytes", "filtering_bytes_max"),
)

FIGURES: Final = (
    *("lag_is_exact", "lag_s", "lag_s_is_exact", "consumed_per_s", "records_per_s"),
    "last_commit_ms",
)
GROUP_FIGURES: Final = (*FIGURES, "lag", "bytes_per_s")
MEMBER_FIGURES: Final = (*FIGURES, "is_stuck", "stuck_s")


@dataclass(slots=True)
class Rates:
    """Rates of counters between two looks."""

    clock: Callable[[], float]
    _before: dict[str, float] = field(default_factory=dict)
    _at_s: float = 0.0

    def take(self, stats: ProxyStats) -> dict[str, float | None]:
        """Per second since the last time; None the first time: no records would be another thing.

        A counter that was set back has had none.
        """
        now_s = self.clock()
        current = {name: float(getattr(stats, counter)) for name, counter in RATES.items()}
        elapsed_s = now_s - self._at_s
        is_known = bool(self._before) and elapsed_s > 0
        rates = {
            name: round(max(0.0, value - self._before[name]) / elapsed_s, 1) if is_known else None
            for name, value in current.items()
        }
        self._before, self._at_s = current, now_s
        return rates


def layout_of(views: Iterable[View]) -> list[dict[str, Any]]:
    """Topics with the borders of their lanes, by name.

    `borders`: first hashes of all lanes but the first; one list when all partitions are cut alike.
    """
    return [
        {
            "name": view.name,
            "partitions": view.layout.partition_count,
            "lanes": view.layout.lane_count,
            "borders": _borders(view),
            "range_of": _range_of(view),
        }
        for view in sorted(views, key=lambda view: view.name)
    ]


def state_of(
    views: Iterable[View],
    reports: Sequence[GroupReport],
    *,
    loads: LaneLoads,
    stats: ProxyStats,
    rates: Rates,
    groups_left_out: int,
    old: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Figures of the node, loads of all lanes, and what groups do on them.

    old: times in ms since 1970 of reports that are not of now, by group.
    """
    listed = sorted(views, key=lambda view: view.name)
    counts = {view.name: view.layout.index_count for view in listed}
    return {
        "node": {
            "version": keylane.__version__,
            **{name: getattr(stats, name) for name in GAUGES},
            **rates.take(stats),
        },
        "topics": [
            {"name": view.name, "bytes_per_s": _by_index(loads.bytes_per_s(view), view)}
            for view in listed
        ],
        "groups": [_group(report, counts, old.get(report.group)) for report in reports],
        "groups_left_out": groups_left_out,
    }


def _borders(view: View) -> list[list[str]]:
    layout = view.layout
    splits = [layout.key_split(partition) for partition in range(layout.partition_count)]
    if all(split == splits[0] for split in splits):
        splits = splits[:1]
    return [[str(cut) for cut in split.cuts] for split in splits]


def _range_of(view: View) -> list[int] | None:
    """Return which of the ranges between the borders each lane has; None: lane k has range k."""
    outputs = view.layout.key_split(0).outputs
    return None if outputs is None else [outputs.index(lane) for lane in range(len(outputs))]


def _by_index(rates: dict[int, float], view: View) -> list[int | None]:
    """Whole bytes per second; None where nothing was measured."""
    found = (rates.get(index) for index in range(view.layout.index_count))
    return [None if rate is None else round(rate) for rate in found]


def _group(report: GroupReport, counts: dict[str, int], as_of_ms: int | None) -> dict[str, Any]:
    place = {member.member_id: number for number, member in enumerate(report.members)}
    by_topic: dict[str, list[LaneReport]] = {}
    for lane in report.lanes:
        by_topic.setdefault(lane.topic, []).append(lane)
    return {
        "name": report.group,
        "state": report.state,
        "assignor": report.assignor,
        "client_assignor": report.client_assignor,
        "generation_id": report.generation_id,
        "refusal": report.refusal,
        "is_old": as_of_ms is not None,
        "as_of_ms": as_of_ms,
        "balance": None if report.balance is None else asdict(report.balance),
        **{name: _short(getattr(report, name)) for name in GROUP_FIGURES},
        "members": [
            {
                "id": member.member_id,
                "label": member.instance_id or member.client_id or member.member_id,
                "host": member.host,
                "lanes": member.lane_count,
                "bytes_per_s": round(member.bytes_per_s),
                "lag": member.lag,
                "gained": None if member.lanes_gained is None else len(member.lanes_gained),
                "lost": None if member.lanes_lost is None else len(member.lanes_lost),
                "bypasses_keylane": member.bypasses_keylane,
                **{name: _short(getattr(member, name)) for name in MEMBER_FIGURES},
            }
            for member in report.members
        ],
        "topics": [
            _lanes(name, lanes, place, counts[name])
            for name, lanes in by_topic.items()
            if name in counts
        ],
    }


def _lanes(
    name: str, lanes: Sequence[LaneReport], place: dict[str, int], count: int
) -> dict[str, Any]:
    owner, is_exact = [NO_MEMBER] * count, [0] * count
    lag: list[int | None] = [None] * count
    lag_s: list[float | None] = [None] * count
    consumed: list[float | None] = [None] * count
    for lane in lanes:
        if lane.lane_index < count:
            owner[lane.lane_index] = place.get(lane.member_id or "", NO_MEMBER)
            lag[lane.lane_index] = lane.lag
            lag_s[lane.lane_index] = lane.lag_s
            consumed[lane.lane_index] = _short(lane.consumed_per_s)
            is_exact[lane.lane_index] = int(lane.lag_is_exact)
    return {
        "name": name,
        "owner": owner,
        "lag": lag,
        "lag_is_exact": is_exact,
        "lag_s": lag_s,
        "consumed_per_s": consumed,
    }


def _short(value: Any) -> Any:
    """Return a number with what a page shows of it."""
    return round(value, 1) if isinstance(value, float) else value
