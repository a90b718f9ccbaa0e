"""Offsets that an open transaction is about to change, for clients that cannot ask for stable ones.

Kafka answers EndTxn before it writes the markers; until then the offsets of the transaction are
pending, and an OffsetFetch gives the ones before. From v7 on a client sets `require_stable`, gets
an error and asks again. An older client (aiokafka up to v3) would read again the records of the
transaction: the lane's former owner has committed it and gave the lane up. So the answer is that
the coordinator is loading, and all clients ask again later.

Source: KIP-447 (`require_stable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keylane.offsets.records.journal import StateKey
from keylane.proxy.apis.commits.lane_offsets import UNSTABLE, fetch_committed
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.groups.group_names import Place
from keylane.proxy.topics.view import View

STABLE_VERSION: Final = 7
"""The first version of OffsetFetch with `require_stable`."""
STABLE_WAIT_S: Final = 2.0
"""Markers take milliseconds. Beyond that the client asks again: what it sends meanwhile waits."""
STABLE_PAUSE_S: Final = 0.01
STABLE_PAUSE_S_MAX: Final = 0.2


async def pending_places(
    group: str, places: Mapping[Place, View], context: Context
) -> frozenset[Place]:
    """Return places where a transaction that is not over has an offset of the group."""
    unsure = [
        place for place, view in places.items() if _may_be_pending(group, place, view, context)
    ]
    if not unsure:
        return frozenset()
    _, errors = await fetch_committed(group, unsure, context)
    return frozenset(place for place in unsure if errors.get(place) == UNSTABLE)


def _may_be_pending(group: str, place: Place, view: View, context: Context) -> bool:
    """Return True when a push was seen here, or may have come before this proxy was started."""
    key = StateKey(group, view.topic_id, place[1])
    pushes = context.groups.pushes
    has_state = context.groups.state_of(group, view, place[1]) is not None
    return pushes.is_known(key) or (has_state and not pushes.is_sure(key))
