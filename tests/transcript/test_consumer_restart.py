"""ConsumerGroupHeartbeat: the journal of lanes in hand, and a keylane that begins with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from keylane.offsets.records.journal import JournalRecord
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, check
from tests.transcript.lane_group import (
    ALL,
    GRACE_S,
    NOTHING,
    assigned,
    beat,
    described,
    full,
    given,
    held,
    join_second,
    lanes,
    partial,
    restarted,
    start,
    takes,
    topics_of,
)

AGAIN, UNKNOWN_MEMBER, NOT_COORDINATOR, INVALID, GROUP_DENIED = 15, 25, 16, 42, 30
JOURNAL = "journal"


def says(member: str, epoch: int, *owned: int) -> dict[str, Any]:
    """A member's full heartbeat."""
    return full(member, epoch, topic_partitions=topics_of(lanes(*owned)))


def releases(context: FakeContext, kept: Sequence[int]) -> dict[str, Any]:
    """Member a has confirmed that it reads some lanes only."""
    takes(context, 2, member_id="a")
    return partial("a", 2, lanes(*kept))


async def asked_to_release() -> tuple[FakeContext, list[int]]:
    """Member a has all lanes and is asked to keep 4 of them, b waits for the others."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    takes(context, 2, member_id="a")
    kept = given(await beat(context, partial("a", 1)))
    assert kept is not None and len(kept) == 4
    return context, kept


async def half_way() -> tuple[FakeContext, list[int], list[int]]:
    """Member a has released 4 lanes, which b was given and has not confirmed."""
    context, kept = await asked_to_release()
    await beat(context, releases(context, kept))
    takes(context, 2, member_id="b")
    new = given(await beat(context, partial("b", 2)))
    assert new == sorted({*ALL} - {*kept})
    return context, kept, new


# The journal.


async def test_lanes_are_in_the_journal_before_the_answer() -> None:
    """Between the broker's answer and that to the member; an answer without change writes none."""
    context, kept = await asked_to_release()
    await beat(context, releases(context, kept))
    context.events.clear()
    takes(context, 2, member_id="b")
    gained = given(await beat(context, partial("b", 2)))
    events, context.groups.events[:] = list(context.events), []
    takes(context, 2, member_id="b")

    await beat(context, partial("b", 2))

    assert events.index("send ConsumerGroupHeartbeat") < events.index(JOURNAL)
    assert JOURNAL not in context.events
    assert held(context)["b"] == set(gained or ())


async def test_lanes_that_the_journal_does_not_have_are_not_given() -> None:
    """COORDINATOR_NOT_AVAILABLE while it is away; the member has them when it asks again."""
    context, kept = await asked_to_release()
    await beat(context, releases(context, kept))
    context.groups.is_journal_down = True
    takes(context, 2, member_id="b")
    refused = await beat(context, partial("b", 2))
    before = held(context)
    context.groups.is_journal_down = False
    takes(context, 2, member_id="b", assigned=NOTHING)

    answer = await beat(context, full("b", 2))

    check({"error_code": AGAIN, "member_epoch": 2}, refused)
    assert "b" not in before
    assert given(answer) == sorted({*ALL} - {*kept})
    assert held(context) == {"a": {*kept}, "b": {*ALL} - {*kept}}


async def test_a_write_that_was_cut_off_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes while the journal writes: its next heartbeat is answered after a write."""
    context, kept = await asked_to_release()
    await beat(context, releases(context, kept))
    append = context.groups.append

    async def cancelled(records: Sequence[JournalRecord]) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(context.groups, "append", cancelled)
    takes(context, 2, member_id="b")
    with pytest.raises(asyncio.CancelledError):
        await beat(context, partial("b", 2))
    monkeypatch.setattr(context.groups, "append", append)
    takes(context, 2, member_id="b", assigned=NOTHING)

    await beat(context, full("b", 2))

    assert held(context) == {"a": {*kept}, "b": {*ALL} - {*kept}}


async def test_an_answer_does_not_run_ahead_of_the_write_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Member a's heartbeat writes b's lanes, which b's first write did not: b's waits for one."""
    context, kept = await asked_to_release()
    await beat(context, releases(context, kept))
    context.groups.is_journal_down = True
    takes(context, 2, member_id="b")
    await beat(context, partial("b", 2))
    append, answers = context.groups.append, []

    async def interrupted(records: Sequence[JournalRecord]) -> None:
        monkeypatch.setattr(context.groups, "append", append)
        takes(context, 2, member_id="b", assigned=NOTHING)
        answers.append(await beat(context, full("b", 2)))
        await append(records)

    monkeypatch.setattr(context.groups, "append", interrupted)
    takes(context, 2, member_id="a")

    answers.append(await beat(context, partial("a", 2)))

    assert [answer["error_code"] for answer in answers] == [AGAIN, AGAIN]


async def test_an_end_that_the_journal_does_not_have_is_written_later() -> None:
    """The leave passes while the journal is away; the next heartbeat's write has it."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    context.groups.is_journal_down = True
    takes(context, -1, member_id="a")
    left = await beat(context, partial("a", -1))
    before = held(context)
    context.groups.is_journal_down = False
    takes(context, 3, member_id="b")
    described(context, "b")

    await beat(context, partial("b", 2))

    assert left["error_code"] == 0
    assert (before, held(context)) == ({"a": {*ALL}}, {"b": {*ALL}})


async def test_a_group_of_another_node() -> None:
    """NOT_COORDINATOR where the node has lost the group while the broker was asked."""
    context, _ = await asked_to_release()
    takes(context, 2, member_id="b")
    context.world.on_answer = lambda: context.groups.lose("g")

    refused = await beat(context, partial("b", 2))

    assert refused["error_code"] == NOT_COORDINATOR
    assert held(context) == {"a": {*ALL}}


async def test_a_group_that_was_served_elsewhere_meanwhile() -> None:
    """Asked to say all again: the journal was loaded anew while the broker was asked."""
    context, _ = await asked_to_release()
    takes(context, 2, member_id="b")
    context.world.on_answer = lambda: context.groups.load(context.groups.restarted())

    refused = await beat(context, partial("b", 2))

    assert refused["error_code"] == AGAIN


# A new keylane.


async def test_a_member_keeps_its_lanes_over_a_restart() -> None:
    """The first answer names all 8 lanes, though no plan is made for 7 s."""
    context = FakeContext()
    await start(context)
    context = restarted(context)
    described(context, "a")
    takes(context, 1, member_id="a", assigned=lanes(0, 1))
    described(context, "a")

    answer = await beat(context, says("a", 1, *ALL))

    assert given(answer) == list(ALL)
    assert held(context) == {"a": {*ALL}}


@pytest.mark.parametrize(("listed", "code"), [(["a"], AGAIN), (["b"], UNKNOWN_MEMBER)])
async def test_a_partial_heartbeat_of_an_unknown_member(listed, code) -> None:
    """Not passed on: asked to say all where the broker lists it, else its end is said at once."""
    context = FakeContext()
    await start(context)
    context = restarted(context)
    described(context, *listed)
    described(context, *listed)

    refused = await beat(context, partial("a", 1))

    check({"error_code": code, "member_epoch": 1}, refused)
    assert "send ConsumerGroupHeartbeat" not in context.events


async def test_a_lane_that_was_given_and_not_confirmed() -> None:
    """Member b does not name its 4 lanes, and keeps them: neither a nor a newcomer has them."""
    context, kept, new = await half_way()
    context = restarted(context)
    described(context, "a", "b")
    takes(context, 2, member_id="b", assigned=NOTHING)
    described(context, "a", "b")
    first = await beat(context, full("b", 2))
    takes(context, 2, member_id="a", assigned=lanes(0, 1))

    second = await beat(context, says("a", 2, *kept))

    assert (given(first), given(second)) == (new, kept)
    assert held(context) == {"a": {*kept}, "b": {*new}}


async def test_nothing_changes_hands_before_the_grace_has_passed() -> None:
    """Member a is gone while keylane was down: b has its lanes after 7 s, and no sooner."""
    context, _, new = await half_way()
    context = restarted(context)
    described(context, "b")
    takes(context, 3, member_id="b", assigned=lanes(0, 1))
    described(context, "b")
    first = await beat(context, says("b", 2, *new))
    context.world.now_s += GRACE_S - 0.01
    takes(context, 3, member_id="b")
    before = await beat(context, partial("b", 3))
    context.world.now_s += 0.02
    takes(context, 3, member_id="b")

    answer = await beat(context, partial("b", 3))

    assert (given(first), given(before)) == (new, None)
    assert given(answer) == list(ALL)


async def test_a_member_that_says_less_than_the_journal_has() -> None:
    """The lanes that a has released meanwhile, which keylane did not learn, are given once more."""
    context, kept = await asked_to_release()
    context = restarted(context)
    described(context, "a", "b")
    takes(context, 2, member_id="a", assigned=lanes(0, 1))
    described(context, "a", "b")

    answer = await beat(context, says("a", 2, *kept))

    assert given(answer) == list(ALL)


async def test_a_zombie_has_no_lane_of_another_member() -> None:
    """Member a says that it owns all lanes, also the 4 that b was given: it is to give them up."""
    context, kept, new = await half_way()
    context = restarted(context)
    described(context, "a", "b")
    takes(context, 2, member_id="a", assigned=lanes(0, 1))
    described(context, "a", "b")

    answer = await beat(context, says("a", 2, *ALL))

    assert given(answer) == kept
    assert held(context) == {"a": {*kept}, "b": {*new}}


async def test_plain_partitions_over_a_restart() -> None:
    """A member of a lane topic and a plain one: both are in the first answer."""
    context = FakeContext()
    await start(context, "a", "orders", "plain")
    context = restarted(context)
    described(context, "a")
    owned = {PLAIN: [0, 2]}
    takes(context, 1, {"topic_partitions": topics_of(owned)}, member_id="a", assigned=owned)
    described(context, "a")
    asked = full("a", 1, "orders", "plain", topic_partitions=topics_of(lanes(*ALL) | owned))

    answer = await beat(context, asked)

    assert assigned(answer) == {ORDERS: list(ALL), PLAIN: [0, 2]}


async def test_a_member_without_lanes_over_two_restarts() -> None:
    """It joined in the grace after the first, and holds none yet: the journal does not have it.

    A client that has not noticed the second one says nothing new: it is asked to say all.
    """
    context = FakeContext()
    await start(context)
    context = restarted(context)
    described(context, "b")
    takes(context, 3, member_id="b", assigned=lanes(0, 1))
    described(context, "b")
    joined = await beat(context, full("b", 0))
    between = held(context)
    context = restarted(context)
    takes(context, 3, member_id="b")
    quiet = await beat(context, partial("b", 3))
    described(context, "b")
    takes(context, 3, member_id="b", assigned=lanes(0, 1))
    described(context, "b")
    await beat(context, full("b", 3))
    context.world.now_s += GRACE_S + 0.01
    takes(context, 3, member_id="b")

    answer = await beat(context, partial("b", 3))

    assert (given(joined), between) == ([], {})
    check({"error_code": AGAIN, "member_epoch": 3}, quiet)
    assert given(answer) == list(ALL)


async def test_a_member_of_plain_topics_over_a_restart() -> None:
    """It is asked once to say all, and passes from there on."""
    context = FakeContext()
    takes(context, 3, member_id="p")
    asked = await beat(context, partial("p", 3))
    takes(context, 3, member_id="p")
    full_again = await beat(context, full("p", 3, "plain"))
    takes(context, 3, member_id="p")

    answer = await beat(context, partial("p", 3))

    assert [each["error_code"] for each in (asked, full_again, answer)] == [AGAIN, 0, 0]
    assert context.consumer_groups.names() == []


@pytest.mark.parametrize("code", [UNKNOWN_MEMBER, INVALID, GROUP_DENIED])
async def test_a_member_that_is_not_known_and_that_the_broker_refuses(code) -> None:
    """It has the broker's answer: there is nothing to say again."""
    context = FakeContext()
    takes(context, 0, error_code=code, error_message="of the broker")

    answer = await beat(context, partial("p", 3))

    check({"error_code": code, "error_message": "of the broker"}, answer)


async def test_a_member_that_is_not_known_while_the_journal_is_away() -> None:
    """It passes, and stays a member: what it reads is asked once the journal is there."""
    context = FakeContext()
    await start(context)
    context = restarted(context)
    context.groups.lose("g")
    takes(context, 1, member_id="a")

    answer = await beat(context, partial("a", 1))

    assert (answer["error_code"], held(context)) == (0, {"a": {*ALL}})


async def test_a_member_of_plain_topics_goes_on_while_the_journal_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its session must not end for a journal that it has no part in."""
    context = FakeContext()
    takes(context, 3, member_id="p")
    await beat(context, full("p", 3, "plain"))

    async def hangs(_group: str) -> None:
        raise AssertionError("the heartbeat waits for the journal")

    monkeypatch.setattr(context.groups, "ready", hangs)
    takes(context, 3, member_id="p")
    goes_on = await beat(context, partial("p", 3))
    takes(context, -1, member_id="p")
    left = await beat(context, partial("p", -1))

    assert (goes_on["error_code"], left["error_code"]) == (0, 0)


async def test_a_member_that_takes_lanes_after_plain_topics() -> None:
    """It is a member of lanes from then on, also when this node has forgotten its group."""
    context = FakeContext()
    takes(context, 1, member_id="a")
    await beat(context, full("a", 1, "plain"))
    described(context, "a")
    takes(context, 2, member_id="a", assigned=lanes(0, 1))
    described(context, "a")
    await beat(context, full("a", 1))
    context.world.now_s += GRACE_S + 0.01
    takes(context, 2, member_id="a")
    changed = await beat(context, partial("a", 2))
    context.consumer_groups.forget("g")
    described(context, "a")
    described(context, "a")

    quiet = await beat(context, partial("a", 2))

    assert given(changed) == list(ALL)
    check({"error_code": AGAIN, "member_epoch": 2}, quiet)
