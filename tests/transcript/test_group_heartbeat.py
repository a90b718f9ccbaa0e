"""ConsumerGroupHeartbeat v0-1, StreamsGroupHeartbeat v0: members of lanes are refused clearly."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from keylane.proxy.apis import ROUTES
from tests.transcript.fake import FakeContext, call, check, versions

CONSUMER, STREAMS = 68, 88
ACCEPTED = {"error_code": 0, "member_epoch": 4, "member_id": "m"}
REFUSED, BUSY, GROUP_DENIED, UNREADABLE = 42, 14, 30, 128
SHOWN = {"topics": [{"name": "orders", "error_code": 0}]}
HIDDEN = {"topics": [{"name": "orders", "error_code": 29}]}
METADATA = 3


def beat(*names: str, epoch: int = 3, regex: str | None = None) -> dict[str, Any]:
    return {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": epoch,
        "subscribed_topic_names": list(names) or None,
        "subscribed_topic_regex": regex,
    }


def streams(*sources: str, epoch: int = 3, regex: tuple[str, ...] = ()) -> dict[str, Any]:
    part = {"subtopology_id": "0", "source_topics": list(sources), "source_topic_regex": regex}
    return {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": epoch,
        "topology": {"epoch": 1, "subtopologies": [part]},
    }


@pytest.mark.parametrize("version", versions(CONSUMER))
async def test_plain_members_pass(version) -> None:
    """As direct, an ordinary heartbeat without a subscription included."""
    context = FakeContext()
    for asked in (beat("plain", "shop"), beat()):
        context.expect(CONSUMER, None, ACCEPTED, version=version)

        check(ACCEPTED, await call(context, CONSUMER, version, asked))


@pytest.mark.parametrize("version", versions(CONSUMER))
@pytest.mark.parametrize("name", ["orders", "orders.lanes-2", "plain.lanes-8"])
async def test_a_lane_topic_is_refused_by_name(version, name) -> None:
    """The message names the topic and what to do."""
    context = FakeContext()

    found = await call(context, CONSUMER, version, beat("plain", name))

    assert found["error_code"] == REFUSED and found["member_epoch"] == 3
    assert name in found["error_message"] and "group.protocol=classic" in found["error_message"]


@pytest.mark.parametrize("version", versions(CONSUMER))
async def test_leaving_is_never_refused(version) -> None:
    """Else the broker would keep the member until its session times out."""
    context = FakeContext()
    context.patterns.keep(("g", "m"), "ord.*")
    context.expect(CONSUMER, {"member_epoch": -1}, {**ACCEPTED, "member_epoch": -1})

    found = await call(context, CONSUMER, version, beat("orders", epoch=-1))

    check({"error_code": 0, "member_epoch": -1}, found)
    assert len(context.patterns) == 0


async def test_a_pattern_that_matches_lanes() -> None:
    """Refused before the broker has the member, as often as it comes; nothing is kept of it."""
    context = FakeContext()
    for _ in range(2):
        context.expect(METADATA, {"topics": [{"name": "orders"}]}, SHOWN)

        found = await call(context, CONSUMER, 1, beat(regex="ord.*"))

        assert found["error_code"] == REFUSED
    assert len(context.patterns) == 0


async def test_a_pattern_whose_lane_topic_comes_later() -> None:
    """It passes until the topic exists."""
    context = FakeContext()
    context.registry.forget("orders")
    context.expect(CONSUMER, {"subscribed_topic_regex": "ord.*"}, ACCEPTED)
    first = await call(context, CONSUMER, 1, beat(regex="ord.*"))
    context.registry.learn("orders", uuid.UUID(int=5), 1)
    context.expect(METADATA, None, SHOWN)

    second = await call(context, CONSUMER, 1, beat())

    assert [first["error_code"], second["error_code"]] == [0, REFUSED]


async def test_a_pattern_that_is_taken_back() -> None:
    """An empty pattern ends the old one; RE2 matches whole names."""
    context = FakeContext()
    for regex, kept in (("pl.*", "pl.*"), ("", None), ("ord", "ord")):
        context.expect(CONSUMER, None, ACCEPTED)

        check(ACCEPTED, await call(context, CONSUMER, 1, beat(regex=regex)))

        assert context.patterns.of(("g", "m")) == kept


async def test_a_pattern_that_the_broker_does_not_take_is_not_kept() -> None:
    """Nor does it take the place of the one that was."""
    context = FakeContext()
    context.patterns.keep(("g", "m"), "pl.*")
    context.expect(CONSUMER, None, {**ACCEPTED, "error_code": 110})

    await call(context, CONSUMER, 1, beat(regex="sh.*"))

    assert context.patterns.of(("g", "m")) == "pl.*"


@pytest.mark.parametrize("regex", [r"\pL+(", r"\pL", "a" * 1025, "(a){900}(b){101}", "ü.*"])
async def test_a_pattern_that_cannot_be_compared(regex) -> None:
    """Never part of the data: refused while there are lane topics, with the code of patterns."""
    context = FakeContext()

    found = await call(context, CONSUMER, 1, beat(regex=regex))

    assert found["error_code"] == UNREADABLE and "cannot be compared" in found["error_message"]
    assert regex not in found["error_message"]


async def test_without_lane_topics_nothing_is_compared() -> None:
    """Nor kept: what a pattern means is the broker's alone."""
    context = FakeContext()
    context.config = context.config.model_copy(update={"lanes": ()})
    context.expect(CONSUMER, {"subscribed_topic_regex": r"\pL"}, ACCEPTED)

    check(ACCEPTED, await call(context, CONSUMER, 1, beat(regex=r"\pL")))
    assert (len(context.patterns), context.world.compared) == (0, [])


async def test_a_pattern_of_a_client_without_the_group_is_the_brokers() -> None:
    """Nothing is compared for it."""
    context = FakeContext()
    context.world.groups_denied.add("g")
    context.expect(CONSUMER, None, {**ACCEPTED, "error_code": GROUP_DENIED})

    found = await call(context, CONSUMER, 1, beat(regex="ord.*"))

    assert found["error_code"] == GROUP_DENIED
    assert (len(context.patterns), context.world.compared) == (0, [])


async def test_a_lane_topic_that_the_client_may_not_know() -> None:
    """Brokers leave it out of the pattern, and that it is there does not show."""
    context = FakeContext()
    context.expect(METADATA, {"topics": [{"name": "orders"}]}, HIDDEN)
    context.expect(CONSUMER, {"subscribed_topic_regex": "ord.*"}, ACCEPTED)

    check(ACCEPTED, await call(context, CONSUMER, 1, beat(regex="ord.*")))


async def test_too_many_patterns_at_once() -> None:
    """The client is to ask again; all stock clients do."""
    context = FakeContext()
    context.world.are_patterns_busy = True

    found = await call(context, CONSUMER, 1, beat(regex="pl.*"))

    assert found["error_code"] == BUSY


async def test_streams_of_plain_topics_pass() -> None:
    """Also a heartbeat without a topology."""
    context = FakeContext()
    for asked in (streams("plain"), {**streams(), "topology": None}):
        context.expect(STREAMS, None, ACCEPTED)

        check({"error_code": 0}, await call(context, STREAMS, 0, asked))


async def test_streams_of_lanes_are_refused() -> None:
    """By source name, which the message has."""
    context = FakeContext()

    found = await call(context, STREAMS, 0, streams("plain", "orders"))

    assert found["error_code"] == REFUSED and "orders" in found["error_message"]


@pytest.mark.parametrize(
    ("api_key", "asked"), [(STREAMS, streams(regex=("x", "ord.*"))), (CONSUMER, beat(regex=".*"))]
)
async def test_a_refused_pattern_gives_no_name_away(api_key, asked) -> None:
    """The refusal is of the pattern."""
    context = FakeContext()
    context.expect(METADATA, None, SHOWN)

    found = await call(context, api_key, ROUTES[api_key].version_max, asked)

    assert found["error_code"] == REFUSED and "orders" not in found["error_message"]


async def test_streams_may_leave() -> None:
    """Whatever they read."""
    context = FakeContext()
    context.expect(STREAMS, None, {**ACCEPTED, "member_epoch": -1})

    check({"error_code": 0}, await call(context, STREAMS, 0, streams("orders", epoch=-1)))
