"""The judge of Kafka's own group offsets finds a step back that was planted, and no other."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Any, cast

from keylane.keyrange.space import HASH_MAX
from keylane.offsets.records.journal import PositionsValue, StateKey, write_key, write_value
from keylane.offsets.values import Position
from tests.long.kafka_history import OffsetHistory, judge_group_offsets

HALF = HASH_MAX // 2


@dataclass(frozen=True)
class Reported:
    """A record of one of Kafka's topics, as confluent-kafka gives it."""

    written: tuple[bytes, bytes]
    at_ms: int

    def key(self) -> bytes:
        return self.written[0]

    def value(self) -> bytes:
        return self.written[1]

    def timestamp(self) -> tuple[int, int]:
        return 1, self.at_ms

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at_ms


def group_offset(at_ms: int, offset: int) -> Reported:
    names = b"".join(struct.pack(">h", len(name)) + name for name in (b"g", b"orders"))
    key = struct.pack(">h", 1) + names + struct.pack(">i", 0)
    return Reported((key, struct.pack(">hq", 3, offset)), at_ms)


def state(at_ms: int, pushed: int, *lanes: int, scanned: int = 0) -> Reported:
    """Of two lanes, what was pushed, and where a scan has led them."""
    places = tuple(
        (last, Position(offset=lane, counted=max(lane, scanned), committed=True))
        for last, lane in zip((HALF, HASH_MAX), lanes, strict=True)
    )
    value = PositionsValue(timestamp_ms=at_ms, pushed=pushed, topic_name="orders", positions=places)
    return Reported((write_key(StateKey("g", uuid.UUID(int=1), 0)), write_value(value)), at_ms)


def judged(offsets: list[Reported], journal: list[Reported]) -> OffsetHistory:
    return judge_group_offsets(cast("Any", offsets), cast("Any", journal), "g")


def test_an_offset_below_what_all_lanes_were_committed_to_is_a_breach() -> None:
    """A group that left keylane then would be handed committed records again."""
    found = judged(
        [group_offset(1, 100), group_offset(5, 99)],
        [state(2, 100, 100, 120)],
    )

    assert found.count == 2 and not found.unconfirmed
    (breach,) = found.breaches
    assert breach == "group offset 99 of ('orders', 0) at 0/5, 5 ms: all were committed to 100"


def test_going_back_from_a_push_that_came_late_is_none() -> None:
    """What it stood for was not acknowledged; lanes stand where they were committed."""
    found = judged(
        [group_offset(1, 100), group_offset(3, 130), group_offset(5, 100), group_offset(7, 110)],
        [state(2, 100, 100, 120), state(4, 130, 100, 120)],
    )

    assert not found.breaches
    assert found.unconfirmed == ["130 to 100 of ('orders', 0) at 0/5, 5 ms"]


def test_going_back_from_what_a_scan_concluded_is_none() -> None:
    """A log that may have been cut: only what members said counts, and that is kept."""
    found = judged(
        [group_offset(1, 125), group_offset(5, 121)],
        [state(2, 125, 121, 130, scanned=125), state(4, 125, 121, 130)],
    )

    assert not found.breaches
    assert found.unconfirmed == ["125 to 121 of ('orders', 0) at 0/5, 5 ms"]
