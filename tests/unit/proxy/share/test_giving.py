"""The end of a session that another node goes on with, and what keeps it from that."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from keylane.errors import UpstreamLost
from keylane.proxy.share.broker_session import SessionTaken, SharedPlace
from keylane.proxy.share.confirmations import Confirmations
from keylane.proxy.share.giving import GIVE_S, give
from keylane.proxy.share.handovers import HandOvers
from keylane.share.dispatcher import Dispatcher
from keylane.share.handover import HandOver, read_note
from keylane.wire.share import ACCEPT, RELEASE, RENEW, AckBatch, ShareAnswer
from tests.virtual_time import run_virtual

PLACE = SharedPlace("billing", "orders", uuid.UUID(int=7), 0)
LOST = 121  # INVALID_RECORD_STATE
BUSY = 15  # COORDINATOR_NOT_AVAILABLE


class Session:
    """A broker that confirms outcomes and locks, but for those that it does not know."""

    place, leader_epoch, next_epoch = PLACE, 4, 9

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.busy_times = 0
        self.error: Exception | None = None
        self.answers_s = 0.0
        self.sent: list[AckBatch] = []

    async def acknowledge(
        self, acks: Sequence[AckBatch], *, is_renewal: bool = False
    ) -> ShareAnswer:
        await asyncio.sleep(self.answers_s)
        if self.error is not None:
            raise self.error
        if self.busy_times:
            self.busy_times -= 1
            return ShareAnswer(0, BUSY)
        if any(each.first <= offset <= each.last for each in acks for offset in self.lost):
            return ShareAnswer(0, LOST)
        self.sent += acks
        assert is_renewal == any(RENEW in each.types for each in acks)
        return ShareAnswer(0)

    def close(self) -> None:
        pass


class Scene:
    """A window of four records, of which member "m" has the first one."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.session: Any = Session()
        self.notes: list[bytes] = []
        self.dispatcher = Dispatcher()
        self.dispatcher.join("m")
        self.dispatcher.acquire([0, 1, 2, 3], [1, 1, 1, 2], 1, clock())
        self.dispatcher.settle(clock())
        self.dispatcher.take("m", 1, clock())
        self.hand_overs = HandOvers(
            3, self.publish, has_others=lambda: True, clock=asyncio.get_running_loop().time
        )

    async def publish(self, note: bytes) -> None:
        self.notes.append(note)

    def accept(self, offset: int) -> None:
        batch = AckBatch(offset, offset, bytes((ACCEPT,)))
        self.dispatcher.acknowledge("m", [batch], 0.0, lambda _: None)

    async def give(self) -> bool:
        clock = asyncio.get_running_loop().time
        confirmations = Confirmations(self.dispatcher, clock)
        return await give(self.session, self.dispatcher, confirmations, self.hand_overs, clock)

    @property
    def offer(self) -> HandOver:
        (note,) = map(read_note, self.notes)
        assert isinstance(note, HandOver)
        return note


def test_what_members_have_is_released_and_the_rest_is_offered() -> None:
    """The offer is written when the broker has confirmed both."""

    async def main() -> None:
        scene = Scene()

        assert await scene.give()
        assert scene.session.sent == [
            AckBatch(0, 0, bytes((RELEASE,))), AckBatch(1, 3, bytes((RENEW,))),
        ]  # fmt: skip
        assert scene.offer.ranges == ((1, 3, 1, 0),)
        assert (scene.offer.at.number, scene.offer.at.group) == (3, "billing")
        assert (scene.offer.leader_epoch, scene.offer.session_epoch) == (4, 9)
        assert (scene.offer.end_offset, scene.offer.quiet_ms) == (3, 0)

    run_virtual(main)


def test_an_outcome_that_was_decided_is_sent_also_when_the_broker_is_busy() -> None:
    """The record ends, and is in no offer."""

    async def main() -> None:
        scene = Scene()
        scene.accept(0)
        scene.session.busy_times = 2

        assert await scene.give()
        assert scene.session.sent[0] == AckBatch(0, 0, bytes((ACCEPT,)))
        assert scene.offer.ranges == ((1, 3, 1, 0),)

    run_virtual(main)


def test_a_lock_that_was_lost_is_not_offered() -> None:
    """Its record comes again to the next owner."""

    async def main() -> None:
        scene = Scene()
        scene.session.lost = {2}

        assert await scene.give()
        assert scene.offer.ranges == ((1, 1, 1, 0), (3, 3, 1, 0))

    run_virtual(main)


def test_nothing_is_offered_that_has_not_settled_or_is_empty() -> None:
    """The next owner does as after a crash, and without records that costs nothing."""

    async def main() -> None:
        unsettled, empty = Scene(), Scene()
        unsettled.dispatcher.is_settled = False
        empty.session.lost = {0, 1, 2, 3}

        assert not await unsettled.give()
        assert not await empty.give()
        assert unsettled.notes == empty.notes == []

    run_virtual(main)


@pytest.mark.parametrize("trouble", ["slow", "lost", "busy renewal"])
def test_a_broker_in_trouble_is_not_waited_for(trouble: str) -> None:
    """The session is the caller's to end."""

    async def main() -> None:
        scene = Scene()
        if trouble == "slow":
            scene.session.answers_s = GIVE_S * 2
        elif trouble == "lost":
            scene.session.error = UpstreamLost("gone")
        else:
            scene.dispatcher.leave("m", 0.0)
            scene.dispatcher.next_acks()
            scene.session.busy_times = 1

        assert not await scene.give()
        assert scene.notes == []

    run_virtual(main)


def test_a_session_that_another_node_has_taken_is_no_ones_to_give() -> None:
    """The caller takes it for any other loss."""

    async def main() -> None:
        scene = Scene()
        scene.session.error = SessionTaken("fenced")

        with pytest.raises(SessionTaken):
            await scene.give()

    run_virtual(main)
