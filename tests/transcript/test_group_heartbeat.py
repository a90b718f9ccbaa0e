"""ConsumerGroupHeartbeat v0-1, StreamsGroupHeartbeat v0: members of lanes are refused clearly."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from keylane.proxy.apis import ROUTES
from tests.transcript.fake import FakeContext, call, check, versions

CONSUMER, STREAMS = 68, 88
ACCEPTED = {"error_code": 0, "member_epoch": 4, "member_id": "m"}
REFUSED = 42


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
    context.patterns["g", "m"] = "ord.*"
    context.expect(CONSUMER, {"member_epoch": -1}, {**ACCEPTED, "member_epoch": -1})

    found = await call(context, CONSUMER, version, beat("orders", epoch=-1))

    check({"error_code": 0, "member_epoch": -1}, found)
    assert context.patterns == {}


async def test_a_pattern_that_matches_lanes() -> None:
    """Refused at once, and at every later heartbeat, which does not repeat it."""
    context = FakeContext()

    found = [
        await call(context, CONSUMER, 1, asked) for asked in (beat(regex="ord.*"), beat(), beat())
    ]

    assert [entry["error_code"] for entry in found] == [REFUSED] * 3


async def test_a_pattern_whose_lane_topic_comes_later() -> None:
    """It passes until the topic exists."""
    context = FakeContext()
    context.registry.forget("orders")
    context.expect(CONSUMER, {"subscribed_topic_regex": "ord.*"}, ACCEPTED)
    first = await call(context, CONSUMER, 1, beat(regex="ord.*"))
    context.registry.learn("orders", uuid.UUID(int=5), 1)

    second = await call(context, CONSUMER, 1, beat())

    assert [first["error_code"], second["error_code"]] == [0, REFUSED]


async def test_a_pattern_that_is_taken_back() -> None:
    """An empty pattern ends the old one; RE2 matches whole names."""
    context = FakeContext()
    await call(context, CONSUMER, 1, beat(regex="ord.*"))
    for regex in ("", "ord", "pl.*"):
        context.expect(CONSUMER, None, ACCEPTED)

        check(ACCEPTED, await call(context, CONSUMER, 1, beat(regex=regex)))


async def test_a_pattern_that_python_cannot_read_may_match_anything() -> None:
    """Never part of the data: refused while there are lane topics."""
    context = FakeContext()

    found = await call(context, CONSUMER, 1, beat(regex=r"\pL+("))

    assert found["error_code"] == REFUSED


async def test_patterns_remembered_are_bounded(monkeypatch) -> None:
    """The oldest goes."""
    monkeypatch.setattr("keylane.proxy.apis.group_heartbeat.MEMBERS_MAX", 2)
    context = FakeContext()
    for member in ("a", "b", "c"):
        context.expect(CONSUMER, None, ACCEPTED)
        await call(context, CONSUMER, 1, {**beat(regex="pl.*"), "member_id": member})

    assert list(context.patterns) == [("g", "b"), ("g", "c")]


async def test_streams_of_plain_topics_pass() -> None:
    """Also a heartbeat without a topology."""
    context = FakeContext()
    for asked in (streams("plain"), {**streams(), "topology": None}):
        context.expect(STREAMS, None, ACCEPTED)

        check({"error_code": 0}, await call(context, STREAMS, 0, asked))


async def test_streams_of_lanes_are_refused() -> None:
    """By source name, which the message tells."""
    context = FakeContext()

    found = await call(context, STREAMS, 0, streams("plain", "orders"))

    assert found["error_code"] == REFUSED and "orders" in found["error_message"]


@pytest.mark.parametrize(
    ("api_key", "asked"), [(STREAMS, streams(regex=("x", "ord.*"))), (CONSUMER, beat(regex=".*"))]
)
async def test_a_refused_pattern_tells_no_name(api_key, asked) -> None:
    """Who sends a pattern need not be allowed to know which topics there are."""
    context = FakeContext()

    found = await call(context, api_key, ROUTES[api_key].version_max, asked)

    assert found["error_code"] == REFUSED and "orders" not in found["error_message"]


async def test_streams_may_leave() -> None:
    """Whatever they read."""
    context = FakeContext()
    context.expect(STREAMS, None, {**ACCEPTED, "member_epoch": -1})

    check({"error_code": 0}, await call(context, STREAMS, 0, streams("orders", epoch=-1)))
