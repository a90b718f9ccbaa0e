"""StreamsGroupHeartbeat v0 (KIP-1071): topologies that read lanes are refused clearly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import FakeContext, call, check, make_request, serve

STREAMS, METADATA = 88, 3
ACCEPTED = {"error_code": 0, "member_epoch": 4, "member_id": "m"}
REFUSED, BUSY, GROUP_DENIED, UNREADABLE = 42, 14, 30, 128
SHOWN = {"topics": [{"name": "orders", "error_code": 0}]}
HIDDEN = {"topics": [{"name": "orders", "error_code": 29}]}


def beat(*sources: str, epoch: int = 3, regex: tuple[str, ...] = ()) -> dict[str, Any]:
    part = {"subtopology_id": "0", "source_topics": list(sources), "source_topic_regex": regex}
    return {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": epoch,
        "topology": {"epoch": 1, "subtopologies": [part]},
    }


@pytest.mark.parametrize(
    "values",
    [beat("plain"), {**beat(), "topology": None}, beat("orders", epoch=-1), beat(regex=("pl.*",))],
    ids=["plain", "partial", "leaves", "pattern"],
)
async def test_members_without_lanes_pass(values) -> None:
    """Byte for byte; so does a member that leaves, whatever it reads."""
    context = FakeContext()
    asked = make_request(STREAMS, 0, values)
    context.expect(STREAMS, bytes(asked.body), ACCEPTED)

    found = asked.decode_answer(await serve(context, asked))

    assert (found.error_code, found.member_epoch) == (0, 4)


@pytest.mark.parametrize("name", ["orders", "orders.lanes-2", "plain.lanes-8"])
async def test_a_source_with_lanes_is_refused(name) -> None:
    """The message has the topic and the remedy, and the broker is not asked."""
    context = FakeContext()

    found = await call(context, STREAMS, 0, beat("plain", name))

    check({"error_code": REFUSED, "member_epoch": 3}, found)
    assert name in found["error_message"] and "group.protocol=classic" in found["error_message"]


async def test_a_refused_pattern_gives_no_name_away() -> None:
    """The second pattern matches: the refusal is of the pattern."""
    context = FakeContext()
    context.expect(METADATA, {"topics": [{"name": "orders"}]}, SHOWN)

    found = await call(context, STREAMS, 0, beat(regex=("x", "ord.*")))

    assert found["error_code"] == REFUSED and "orders" not in found["error_message"]
    assert context.world.compared == ["x", "ord.*"]


async def test_a_topic_that_the_client_may_not_describe() -> None:
    """Brokers leave it out of the pattern, and that it is there does not show."""
    context = FakeContext()
    context.expect(METADATA, {"topics": [{"name": "orders"}]}, HIDDEN)
    context.expect(STREAMS, None, ACCEPTED)

    check(ACCEPTED, await call(context, STREAMS, 0, beat(regex=("ord.*",))))


@pytest.mark.parametrize("regex", [r"\pL+(", "a" * 1025, "(a){900}(b){101}"])
async def test_a_pattern_that_cannot_be_compared(regex) -> None:
    """Refused with the code of patterns, which does not repeat it."""
    context = FakeContext()

    found = await call(context, STREAMS, 0, beat(regex=("pl.*", regex)))

    assert found["error_code"] == UNREADABLE and "cannot be compared" in found["error_message"]
    assert regex not in found["error_message"]


async def test_more_patterns_than_one_topology_may_have() -> None:
    """101 patterns are refused before one of them is compared."""
    context = FakeContext()

    found = await call(context, STREAMS, 0, beat(regex=("pl.*",) * 101))

    assert found["error_code"] == UNREADABLE and "at most 100" in found["error_message"]
    assert context.world.compared == []


async def test_too_many_patterns_at_once() -> None:
    """COORDINATOR_LOAD_IN_PROGRESS: the client asks again."""
    context = FakeContext()
    context.world.are_patterns_busy = True

    found = await call(context, STREAMS, 0, beat(regex=("pl.*",)))

    check({"error_code": BUSY, "member_epoch": 3}, found)


@pytest.mark.parametrize(("config", "denied"), [({"lanes": ()}, ()), ({}, ("g",))])
async def test_patterns_that_nothing_is_compared_with(config, denied) -> None:
    """Without lane topics, and without READ on the group, the broker has the answer."""
    context = FakeContext()
    context.config = context.config.model_copy(update=config)
    context.world.groups_denied.update(denied)
    context.expect(STREAMS, None, {**ACCEPTED, "error_code": GROUP_DENIED})

    found = await call(context, STREAMS, 0, beat(regex=(r"\pL",)))

    assert (found["error_code"], context.world.compared) == (GROUP_DENIED, [])
