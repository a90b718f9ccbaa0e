"""Room in the window of a partition, which brokers count from the first record not finished."""

from __future__ import annotations

import uuid
from typing import Any

from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.intake import Intake
from keylane.share.dispatcher import Dispatcher
from keylane.wire.share import ACCEPT, AckBatch

PLACE = SharedPlace("billing", "orders", uuid.UUID(int=7), 0)


def window(*offsets: int) -> tuple[Intake, Dispatcher]:
    """An intake at a broker that locks 100 offsets, and a session that holds these."""
    dispatcher = Dispatcher()
    dispatcher.join("m")
    dispatcher.acquire(list(offsets), list(offsets), 1, 0.0)
    dispatcher.settle(0.0)
    unused: Any = None
    intake = Intake(PLACE, dispatcher, unused, unused, unused, lambda: 0.0)
    intake.locks_max = 100
    intake.begin(max(offsets, default=-1))
    return intake, dispatcher


def test_the_room_is_counted_from_the_first_record_that_is_not_finished() -> None:
    """Finished ones behind it take room, and give it back with it."""
    intake, dispatcher = window(10, 40, 69)
    before = intake.room
    for offsets, room in (((40, 69), 40), ((10,), 100)):
        dispatcher.take("m", 3, 0.0)
        acks = [AckBatch(each, each, bytes((ACCEPT,))) for each in offsets]
        dispatcher.acknowledge("m", acks, 0.0, lambda _: None)
        dispatcher.acked(dispatcher.next_acks(), 0.0)
        assert intake.room == room

    assert before == 40


def test_a_log_that_was_cut_leaves_the_whole_room() -> None:
    """A new leader has lost what lies above; what was acquired of that takes no room there."""
    intake, dispatcher = window(90_000)
    dispatcher.lose_all(0.0)
    dispatcher.settle(0.0)

    intake.begin(-1)
    dispatcher.acquire([50_000], [1], 1, 0.0)

    assert dispatcher.bounds() == (50_000, 90_000)
    assert intake.room == 100


def test_the_room_is_no_bound_where_the_brokers_bound_is_not_known() -> None:
    """keylane may not ask for the group's configuration."""
    intake, _ = window(0, 500)
    intake.locks_max = None

    assert intake.room > 1_000_000
