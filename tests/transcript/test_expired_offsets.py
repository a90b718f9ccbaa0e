"""Offsets that a broker has expired: kept for members that run, gone for a group that begins."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import FakeContext, call
from tests.transcript.test_offset_commit import (
    COMMIT,
    GROUP,
    codes,
    commit,
    no_history,
    offset_of,
    pushes,
    topic,
)
from tests.transcript.test_offset_fetch import FETCH, answer, known, one, request, shown
from tests.transcript.test_offset_fetch import topic as asked

DESCRIBE = 15
BEFORE = {0: 100, 2: 200, 4: 50, 6: 70}
NOTHING = dict.fromkeys(BEFORE, -1)
LOADING = 14


def described(context: FakeContext, state: str, code: int = 0, kind: str = "consumer") -> None:
    """What the coordinator says of the group."""
    group: dict[str, Any] = {"group_id": GROUP, "group_state": state, "protocol_type": kind}
    context.expect(DESCRIBE, {"groups": [GROUP]}, {"groups": [{**group, "error_code": code}]})


async def fetched(context: FakeContext) -> dict[int, Any]:
    """Where the lanes of partition 0 stand, the broker having no offset there."""
    context.expect(FETCH, None, answer(9, one(9, "orders", {0: -1})))
    found = await call(context, FETCH, 9, request(9, asked("orders", list(BEFORE))))
    lanes: dict[int, Any] = shown(9, found)["orders"]
    return lanes


@pytest.mark.parametrize(
    ("state", "kind", "positions"),
    [
        ("Stable", "consumer", BEFORE),
        ("PreparingRebalance", "consumer", BEFORE),
        ("CompletingRebalance", "consumer", BEFORE),
        ("Empty", "consumer", NOTHING),
        ("Empty", "", NOTHING),
        ("Dead", "", NOTHING),
        ("Stable", "connect", NOTHING),
    ],
)
async def test_members_that_run_keep_their_lanes(state, kind, positions) -> None:
    """The coordinator is asked once for all lanes; in an empty group a member starts anew."""
    context = FakeContext()
    await known(context, BEFORE)
    context.expect(FETCH, None, answer(9, one(9, "orders", {0: -1})))
    described(context, state, kind=kind)
    found = await call(context, FETCH, 9, request(9, asked("orders", list(BEFORE))))

    assert shown(9, found)["orders"] == positions
    assert context.stats.offsets_kept == (positions is BEFORE)


async def test_a_group_that_began_here_was_deleted_before() -> None:
    """Its members are shown to the broker with their topic, so nothing of theirs expires."""
    context = FakeContext()
    await known(context, BEFORE)
    context.group_names.note_empty(GROUP)

    assert await fetched(context) == NOTHING


async def test_a_coordinator_that_does_not_say_is_asked_again() -> None:
    """Neither kept nor given up: the client repeats its question."""
    context = FakeContext()
    await known(context, BEFORE)
    context.expect(FETCH, None, answer(9, one(9, "orders", {0: -1})))
    described(context, "", LOADING)
    found = await call(context, FETCH, 9, request(9, asked("orders", list(BEFORE))))

    assert shown(9, found)["orders"] == dict.fromkeys(BEFORE, f"error {LOADING}")
    assert offset_of(context, 0) == 100


@pytest.mark.parametrize(("state", "stable"), [("Stable", 60), ("Empty", 0)])
async def test_the_next_commit_puts_the_stable_offset_back(state, stable) -> None:
    """After a restart the broker is asked before the first push; lanes are where they were."""
    context = FakeContext()
    await known(context, BEFORE)
    context.groups.pushes.forget_where(lambda _: True)
    no_history(context, 0)
    described(context, state)
    context.expect(COMMIT, {"topics": [pushes(9, {0: stable})]}, {"topics": [codes(9, {0: 0})]})

    errors = await commit(context, 9, topic("orders", {4: 60}))

    assert set(errors.values()) == {0}
    assert offset_of(context, 4) == 60
    assert offset_of(context, 2) == (200 if stable else -1)


async def test_a_commit_waits_for_a_coordinator_that_says() -> None:
    """Nothing is pushed, and the client commits again."""
    context = FakeContext()
    await known(context, BEFORE)
    context.groups.pushes.forget_where(lambda _: True)
    no_history(context, 0)
    described(context, "", LOADING)

    errors = await commit(context, 9, topic("orders", {4: 60}))

    assert set(errors.values()) == {LOADING}
    assert offset_of(context, 4) == 50
