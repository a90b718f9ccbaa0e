"""The beginning of a session: anew, or in the place of one that is offered."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from keylane.errors import UpstreamLost
from keylane.proxy.share.broker_session import BrokerSession, SharedPlace
from keylane.proxy.share.handovers import HandOvers
from keylane.proxy.share.taking import LOOK_S, LOOKS_MAX, begin
from keylane.share.handover import HandOver, HeldRange, read_note, write_note
from tests.virtual_time import run_virtual

PLACE = SharedPlace("billing", "orders", uuid.UUID(int=7), 0)
EPOCH = 9


class Session:
    """A session that is not open yet, at a broker that has another one of the name for a time."""

    place, leader_epoch = PLACE, 4

    def __init__(self, open_for_looks: int = 0, error: Exception | None = None) -> None:
        self.looks, self.open_for_looks, self.error = 0, open_for_looks, error
        self.calls: list[str] = []

    async def is_open_elsewhere(self) -> bool:
        self.looks += 1
        return self.looks <= self.open_for_looks

    async def follow(self, epoch: int) -> bool:
        self.calls.append("follow")
        return epoch == EPOCH

    async def open(self) -> None:
        self.calls.append("open")
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.calls.append("close")


def node(number: int, notes: list[bytes]) -> HandOvers:
    async def publish(note: bytes) -> None:
        notes.append(note)

    return HandOvers(
        number, publish, has_others=lambda: True, clock=asyncio.get_running_loop().time
    )


def offer_of(hand_overs: HandOvers) -> HandOver:
    return HandOver(
        at=hand_overs.noted(PLACE), leader_epoch=4, session_epoch=EPOCH, end_offset=5,
        quiet_ms=0, ranges=(HeldRange(0, 5, 1),),
    )  # fmt: skip


async def begun(session: Session, hand_overs: HandOvers | None) -> Any:
    """Return what `begin` finds."""
    made: Any = session
    connect = mock.AsyncMock(return_value=made)
    with mock.patch.object(BrokerSession, "connect", connect):
        found, offer = await begin(mock.Mock(), PLACE, hand_overs)
    assert found is made
    return offer


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_session_is_opened_at_once_where_none_is_open(is_alone: bool) -> None:
    """The first start of a group waits for nothing."""

    async def main() -> None:
        session = Session()

        assert await begun(session, None if is_alone else node(1, [])) is None
        assert (session.calls, session.looks) == (["open"], 0 if is_alone else 1)
        assert asyncio.get_running_loop().time() < LOOK_S

    run_virtual(main)


def test_an_offer_is_followed_with_thanks() -> None:
    """It comes while the session is open."""

    async def main() -> None:
        notes: list[bytes] = []
        after, session = node(1, notes), Session(open_for_looks=99)
        offer = offer_of(node(0, []))
        asyncio.get_running_loop().call_later(0.25, after.take_in, write_note(offer))

        found = await begun(session, after)
        await asyncio.sleep(0)

        assert (found, session.calls) == (offer, ["follow"])
        assert read_note(notes[0]).at == after.noted(PLACE)

    run_virtual(main)


@pytest.mark.parametrize(
    ("changes", "calls"),
    [({"leader_epoch": 5}, ["open"]), ({"session_epoch": EPOCH + 1}, ["follow", "open"])],
)
def test_an_offer_that_does_not_fit_is_none(changes: dict[str, int], calls: list[str]) -> None:
    """Another broker leads, or the session has had a request since."""

    async def main() -> None:
        notes: list[bytes] = []
        after, session = node(1, notes), Session(open_for_looks=1)
        offer: Any = replace(offer_of(node(0, [])), **changes)  # type: ignore[arg-type]
        after.take_in(write_note(offer))

        assert await begun(session, after) is None
        assert (session.calls, notes) == (calls, [])

    run_virtual(main)


@pytest.mark.parametrize(("open_for_looks", "looks"), [(3, 3), (999, LOOKS_MAX)])
def test_a_session_that_is_not_offered_is_replaced(open_for_looks: int, looks: int) -> None:
    """As soon as its node has ended it, or when the wait is over."""

    async def main() -> None:
        session = Session(open_for_looks)

        assert await begun(session, node(1, [])) is None
        assert session.calls == ["open"]
        assert asyncio.get_running_loop().time() == pytest.approx(looks * LOOK_S)

    run_virtual(main)


def test_a_session_that_cannot_be_opened_leaves_no_connection() -> None:
    """The caller has none to close."""

    async def main() -> None:
        session = Session(error=UpstreamLost("gone"))
        with pytest.raises(UpstreamLost):
            await begun(session, None)

        assert session.calls == ["open", "close"]

    run_virtual(main)
