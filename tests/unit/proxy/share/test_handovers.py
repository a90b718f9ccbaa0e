"""Offers and thanks between two nodes, and sessions that are silent until one of them comes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from keylane.errors import ScansInvalid, UpstreamLost
from keylane.proxy.share import handovers
from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.handovers import FRESH_S, SILENT_S, HandOvers
from keylane.share.handover import HandOver, HeldRange, NotedPlace, Thanks, write_note
from tests.virtual_time import run_virtual

WAIT_S = 1.0
PLACE = SharedPlace("billing", "orders", uuid.UUID(int=7), 0)


class Session:
    """A session that notes when it is closed."""

    def __init__(self) -> None:
        self.place = PLACE
        self.closed_s: list[float] = []

    def close(self) -> None:
        self.closed_s.append(now_s())


def now_s() -> float:
    return asyncio.get_running_loop().time()


def node(number: int, publish: Callable[[bytes], Any]) -> HandOvers:
    return HandOvers(number, publish, has_others=lambda: True, clock=now_s)


def two_nodes() -> tuple[HandOvers, HandOvers]:
    """Return two nodes, of which each reads what either publishes."""
    both: list[HandOvers] = []

    async def publish(note: bytes) -> None:
        for each in both:
            each.take_in(note)

    both += [node(0, publish), node(1, publish)]
    return both[0], both[1]


def offer_of(hand_overs: HandOvers) -> HandOver:
    return HandOver(
        at=hand_overs.noted(PLACE), leader_epoch=4, session_epoch=9, end_offset=5, quiet_ms=0,
        ranges=(HeldRange(0, 5, 1),),
    )  # fmt: skip


def test_an_offer_arrives_and_thanks_close_the_session() -> None:
    """The former owner need not wait any longer."""

    async def main() -> None:
        before, after = two_nodes()
        steps: list[tuple[str, str]] = []
        before.count = lambda step: steps.append(("before", step))
        after.count = lambda step: steps.append(("after", step))
        session: Any = Session()
        waiting = asyncio.create_task(after.wait_for(PLACE, WAIT_S))  # noqa: TID251
        await asyncio.sleep(0.1)

        await before.give(session, offer_of(before))
        offer = await waiting
        during = list(session.closed_s)
        after.thank(PLACE)
        await before.stop()

        assert offer == offer_of(before)
        assert (during, len(session.closed_s)) == ([], 1)
        assert steps == [("before", "offered"), ("after", "taken"), ("before", "followed")]
        assert now_s() < 1.0

    run_virtual(main)


def test_a_session_that_no_node_follows_ends() -> None:
    """Nothing stays locked."""

    async def main() -> None:
        before, _ = two_nodes()
        session: Any = Session()

        await before.give(session, offer_of(before))
        await before.stop()

        assert session.closed_s == [pytest.approx(SILENT_S)]

    run_virtual(main)


def test_an_offer_that_does_not_come_is_waited_for_a_moment() -> None:
    """The other node has died, or is of an older version."""

    async def main() -> None:
        _, after = two_nodes()

        assert await after.wait_for(PLACE, WAIT_S) is None
        assert now_s() == pytest.approx(WAIT_S)

    run_virtual(main)


def test_an_offer_counts_once_and_while_it_is_fresh() -> None:
    """Its session is over, or another one."""

    async def main() -> None:
        before, after = two_nodes()
        seen: list[list[SharedPlace]] = []
        after.on_offer = lambda _place: seen.append(list(after.offered()))

        await before.give(Session(), offer_of(before))  # type: ignore[arg-type]
        first, again = await after.wait_for(PLACE, WAIT_S), await after.wait_for(PLACE, WAIT_S)
        await before.give(Session(), offer_of(before))  # type: ignore[arg-type]
        await asyncio.sleep(FRESH_S + 0.1)

        assert first is not None
        assert again is None
        assert seen == [[PLACE], [PLACE]]
        assert list(after.offered()) == []
        assert await after.wait_for(PLACE, WAIT_S) is None

    run_virtual(main)


def test_a_partition_that_comes_back_is_the_nodes_own_to_follow() -> None:
    """Its own offer is at hand; other nodes' copies of it are not."""

    async def main() -> None:
        before, _ = two_nodes()
        session: Any = Session()
        await before.give(session, offer_of(before))

        own = await before.wait_for(PLACE, WAIT_S)
        before.thank(PLACE)

        assert own == offer_of(before)
        assert len(session.closed_s) == 1

    run_virtual(main)


def test_what_cannot_be_published_leaves_the_session_as_it_is() -> None:
    """The caller ends it; and thanks that are lost cost the other node its time."""

    async def main() -> None:
        async def publish(_note: bytes) -> None:
            raise UpstreamLost("no topic")

        alone = node(0, publish)
        session: Any = Session()

        with pytest.raises(UpstreamLost):
            await alone.give(session, offer_of(alone))
        alone.thank(PLACE)
        await alone.stop()

        assert session.closed_s == []

    run_virtual(main)


def test_an_offer_whose_ranges_cannot_be_read_is_passed_over(caplog) -> None:
    """It is read where it is taken: a log line says so, and the session is opened anew."""

    async def main() -> None:
        _, after = two_nodes()
        after.take_in(write_note(offer_of(node(0, after._publish)))[:-1])

        assert await after.wait_for(PLACE, WAIT_S) is None
        assert "cannot be read, and is passed over group=billing" in caplog.text

    run_virtual(main)


def test_offers_are_remembered_within_their_bound(monkeypatch) -> None:
    """The oldest is forgotten first; one that comes again counts once."""
    monkeypatch.setattr(handovers, "OFFERS_BYTES_MAX", 3 * len(note_of(0)))

    async def main() -> None:
        _, after = two_nodes()
        for partition in (0, 1, 1, 2, 3):
            after.take_in(note_of(partition))

        assert [place.partition for place in after.offered()] == [1, 2, 3]
        assert await after.wait_for(PLACE._replace(partition=2), WAIT_S) is not None
        assert [place.partition for place in after.offered()] == [1, 3]

    run_virtual(main)


def note_of(partition: int) -> bytes:
    """Return an offer of node 0 for a partition."""
    at = NotedPlace(
        number=0, group="billing", topic="orders", topic_id=PLACE.topic_id, partition=partition
    )
    offer = HandOver(
        at=at, leader_epoch=4, session_epoch=9, end_offset=5, quiet_ms=0,
        ranges=(HeldRange(0, 5, 1),),
    )  # fmt: skip
    return write_note(offer)


def test_a_note_that_cannot_be_read_is_refused() -> None:
    """The feed logs it."""

    async def main() -> None:
        _, after = two_nodes()
        with pytest.raises(ScansInvalid):
            after.take_in(write_note(Thanks(after.noted(PLACE)))[:-1])

    run_virtual(main)
