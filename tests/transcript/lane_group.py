"""A KIP-848 group on lanes as a script: heartbeats of its members, and the broker's answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tests.transcript.fake import ORDERS, FakeContext, call

HEARTBEAT, DESCRIBE, DESCRIBE_CLASSIC = 68, 69, 15
GROUP: Final = "g"
INTERVAL_MS, TIMEOUT_MS = 5000, 60_000
ALL: Final = tuple(range(8))
"""Lanes of orders."""
NOT_FOUND = 69
GRACE_S: Final = 7.0
"""The heartbeat interval, and two seconds."""
NOTHING: Final[dict[uuid.UUID, Iterable[int]]] = {}
Owned = Mapping[uuid.UUID, Iterable[int]]


def topics_of(owned: Owned) -> list[dict[str, Any]]:
    """Partitions by topic id, as messages have them."""
    return [
        {"topic_id": topic_id, "partitions": sorted(indexes)} for topic_id, indexes in owned.items()
    ]


def full(member: str, epoch: int, *names: str, **fields: Any) -> dict[str, Any]:
    """A heartbeat that says all, as after a failure, and as a join with epoch 0."""
    return {
        "group_id": GROUP,
        "member_id": member,
        "member_epoch": epoch,
        "rebalance_timeout": TIMEOUT_MS,
        "subscribed_topic_names": list(names or ("orders",)),
        "topic_partitions": [],
    } | fields


def partial(member: str, epoch: int, owned: Owned | None = None, **fields: Any) -> dict[str, Any]:
    """A heartbeat that says what has changed: nothing, or what the member owns now."""
    said = {"topic_partitions": None if owned is None else topics_of(owned)}
    return {"group_id": GROUP, "member_id": member, "member_epoch": epoch, **said, **fields}


def lanes(*indexes: int) -> dict[uuid.UUID, Iterable[int]]:
    """Lanes of orders, by their own name."""
    return {ORDERS: indexes}


def takes(
    context: FakeContext,
    epoch: int,
    wants: dict[str, Any] | None = None,
    *,
    assigned: Owned | None = None,
    **fields: Any,
) -> None:
    """The broker takes a heartbeat, or refuses it with a code."""
    assignment = None if assigned is None else {"topic_partitions": topics_of(assigned)}
    answer = {
        "member_id": "m",
        "member_epoch": epoch,
        "heartbeat_interval": INTERVAL_MS,
        "assignment": assignment,
    }
    context.expect(HEARTBEAT, wants, answer | fields)


def described(
    context: FakeContext,
    *members: str,
    parts: Mapping[str, Owned] | None = None,
    topics: Sequence[str] = ("orders",),
    **fields: Any,
) -> None:
    """The broker lists the group's members; with static ones as `instance/member`."""
    entries = []
    for named in members:
        instance, _, member_id = named.rpartition("/")
        owned = topics_of((parts or {}).get(member_id, {}))
        assignment = {"topic_partitions": owned}
        entries.append(
            {
                "member_id": member_id,
                "instance_id": instance or None,
                "subscribed_topic_names": topics,
                "assignment": assignment,
                "target_assignment": assignment,
            }
        )
    group = {"group_id": GROUP, "group_state": "Stable", "members": entries}
    context.expect(DESCRIBE, {"group_ids": [GROUP]}, {"groups": [group | fields]})


def not_there(context: FakeContext, state: str = "Dead", *, error: int = 0) -> None:
    """The broker has no such group of the consumer protocol; one of the classic protocol maybe."""
    context.expect(DESCRIBE, None, {"groups": [{"group_id": GROUP, "error_code": NOT_FOUND}]})
    classic = {"group_id": GROUP, "group_state": state, "error_code": error}
    context.expect(DESCRIBE_CLASSIC, {"groups": [GROUP]}, {"groups": [classic]})


async def beat(context: FakeContext, asked: dict[str, Any], *, version: int = 1) -> dict[str, Any]:
    """Send a heartbeat and play the script."""
    return await call(context, HEARTBEAT, version, asked)


def assigned(answer: dict[str, Any]) -> dict[uuid.UUID, list[int]] | None:
    """What an answer gives its member; None: as before."""
    assert answer["error_code"] == 0, answer
    if answer["assignment"] is None:
        return None
    return {
        topic["topic_id"]: topic["partitions"] for topic in answer["assignment"]["topic_partitions"]
    }


def given(answer: dict[str, Any]) -> list[int] | None:
    """Lanes of orders in an answer; None: as before."""
    found = assigned(answer)
    return None if found is None else found.get(ORDERS, [])


async def start(context: FakeContext, member: str = "a", *names: str, **fields: Any) -> None:
    """A group begins with a member, which has all lanes and has confirmed them."""
    not_there(context)
    takes(context, 1, member_id=member, assigned=lanes(0, 1))
    instance = fields.get("instance_id")
    described(context, f"{instance}/{member}" if instance else member)
    answer = await beat(context, full(member, 0, *names, **fields))
    owned = assigned(answer)
    takes(context, 1, member_id=member)
    await beat(context, partial(member, 1, owned))
    context.events.clear()
    context.world.sent.clear()


async def join_second(context: FakeContext, member: str = "b") -> dict[str, Any]:
    """A second member joins; every lane is in the hands of the first."""
    takes(context, 2, member_id=member, assigned=NOTHING)
    described(context, "a", member)
    return await beat(context, full(member, 0))


async def hand_over(context: FakeContext) -> tuple[list[int], list[int]]:
    """Member b joins, a gives lanes up, and b is given these; the lanes of a, and of b."""
    await join_second(context)
    takes(context, 2, member_id="a")
    kept = given(await beat(context, partial("a", 1))) or []
    takes(context, 2, member_id="a")
    await beat(context, partial("a", 2, lanes(*kept)))
    takes(context, 2, member_id="b")
    return kept, given(await beat(context, partial("b", 2))) or []


def held(context: FakeContext) -> dict[str, set[int]]:
    """Lanes in hand by identity, as a new keylane would load them from the journal."""
    found = context.groups.restarted().held.of_group(GROUP)
    return {identity: {index for _, index in each.lanes} for identity, each in found.items()}


def restarted(context: FakeContext) -> FakeContext:
    """Another keylane, with the journal of the one before."""
    later = FakeContext()
    later.world.now_s = context.world.now_s
    later.groups.journal[:] = context.groups.journal
    later.groups.load(context.groups.restarted())
    return later
