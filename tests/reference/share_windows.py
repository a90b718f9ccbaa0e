"""Open partitions of ordered share groups, with windows but without brokers."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from keylane.cache.slice_cache import SliceCache
from keylane.config.share_rules import ShareRule
from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.groups import OrderedGroups
from keylane.proxy.share.held_bytes import HeldBytes
from keylane.proxy.share.kit import ShareKit
from keylane.share.dispatcher import Dispatcher
from keylane.share.held import HeldRecord
from keylane.share.sessions import SessionKey
from keylane.share.summary import WindowSummary, summarise

ORDERS = uuid.UUID(int=0xA1)
CACHE_BYTES = 4_000_000


@dataclass(slots=True, eq=False)
class FakePartition:
    """Stands for `OrderedPartition`: the window, at a time that the test sets."""

    place: SharedPlace
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    error_code: int = 0
    leader: tuple[int, int] | None = (1, 7)
    now_s: float = 100.0
    delivery_limit: int | None = None

    def summary(self) -> WindowSummary:
        """Return the window in numbers."""
        return summarise(self.dispatcher, self.now_s, self.delivery_limit)

    def hold(self, *points: int, first: int = 0, count: int = 1, at_s: float = 100.0) -> None:
        """Acquire a record of each of these points, from offset `first` on; and settle."""
        offsets = range(first, first + len(points))
        self.dispatcher.acquire(list(offsets), points, count, at_s)
        self.dispatcher.is_settled = True

    def hand_out(self, records_max: int, member: Any = "m") -> list[HeldRecord]:
        """Give a member records."""
        self.dispatcher.join(member)
        return self.dispatcher.take(member, records_max, self.now_s)


class SharedGroups:
    """`OrderedGroups` with partitions that tests open."""

    def __init__(self, *rules: ShareRule) -> None:
        held_bytes = HeldBytes(SliceCache(bytes_max=CACHE_BYTES))
        kit = cast("ShareKit", SimpleNamespace(held_bytes=held_bytes))
        self.ordered = OrderedGroups(kit, rules or (ShareRule(group="g*", look_ahead=100),))

    def open(
        self, group: str = "g", topic: str = "orders", partition: int = 0, **values: Any
    ) -> FakePartition:
        """Open a partition."""
        opened = FakePartition(SharedPlace(group, topic, topic_id_of(topic), partition), **values)
        key = group, (opened.place.topic_id.bytes, partition)
        partitions: dict[Any, Any] = self.ordered._partitions
        partitions[key] = opened
        return opened

    def join(
        self, group: str, member_id: str, places: Sequence[SharedPlace], broker_id: int = 1
    ) -> None:
        """Open a member's session with these partitions."""
        key = SessionKey(broker_id, group, member_id)
        session, _, _ = self.ordered.sessions.open(key, "connection", has_acks=False)
        assert session is not None
        session.add((place.topic_id.bytes, place.partition) for place in places)


def topic_id_of(topic: str) -> uuid.UUID:
    """Return the id of a topic."""
    return ORDERS if topic == "orders" else uuid.uuid5(uuid.NAMESPACE_DNS, topic)
