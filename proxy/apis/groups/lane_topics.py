"""Lane topics of a group as an assignor sees them, with the load of their lanes."""

from __future__ import annotations

from collections.abc import Mapping

from keylane.assignor.model import Lane, LaneTopic
from keylane.assignor.sticky import join_rates
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.topics.view import View


def lane_topic(name: str, view: View, context: Context, *, is_co_partitioned: bool) -> LaneTopic:
    """Return a topic; lanes that are cut elsewhere hold other keys, and are not joined."""
    layout = view.layout
    co_group = None
    if is_co_partitioned:
        cuts = layout.fingerprint.hex()
        co_group = f"{layout.partition_count}x{layout.lane_count} {cuts}"
    return LaneTopic(
        name=name,
        partition_count=layout.partition_count,
        lane_count=layout.lane_count,
        co_group=co_group,
        partition_racks=context.read_racks(view),
        is_split=context.switches.accepts_range_fetch(view.topic, is_lane_view=True),
    )


def lane_loads(views: Mapping[str, View], context: Context) -> dict[Lane, float]:
    """Return one load per lane, by the name of its view."""
    bytes_per_s: dict[Lane, float] = {}
    records_per_s: dict[Lane, float] = {}
    for name, view in views.items():
        bytes_per_s |= {(name, i): rate for i, rate in context.loads.bytes_per_s(view).items()}
        records_per_s |= {(name, i): rate for i, rate in context.loads.records_per_s(view).items()}
    return join_rates(bytes_per_s, records_per_s)
