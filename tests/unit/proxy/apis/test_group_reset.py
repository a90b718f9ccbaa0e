"""proxy/apis/commits/group_reset.py: topics that are named; answers in words for an operator."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.errors import ActionInvalid, ActionRefused, ActionUnknown, UpstreamLost
from keylane.offsets.resets import GroupReset, ResetTo, Wish
from keylane.proxy.apis.commits.group_reset import _expect_taken, _find_places
from tests.transcript.fake import ORDERS, FakeContext

PLACES = [("orders", 0), ("orders", 1)]
NONE = ErrorCode.none
JOINED = ErrorCode.unknown_member_id
DENIED = ErrorCode.topic_authorization_failed
TOO_MANY = ErrorCode.invalid_commit_offset_size
NO_COORDINATOR = ErrorCode.not_coordinator
LOADING = ErrorCode.coordinator_load_in_progress


@pytest.mark.parametrize(
    ("codes", "error", "text"),
    [
        ((JOINED, JOINED), ActionRefused, "a member has joined meanwhile, nothing has changed"),
        ((DENIED, DENIED), ActionRefused, "allow keylane's own principal READ"),
        ((TOO_MANY, TOO_MANY), ActionRefused, "nothing has changed: reset topics one by one"),
        ((NONE, DENIED), ActionRefused, "orders partition 1: .*; 1 other partitions are reset"),
        ((NONE, None), ActionUnknown, "no answer"),
        ((NO_COORDINATOR, NO_COORDINATOR), ActionUnknown, "not_coordinator"),
        ((LOADING, LOADING), UpstreamLost, "coordinator_load_in_progress; nothing has changed"),
    ],
)
def test_an_answer_says_what_has_changed(codes, error, text) -> None:
    """It is unknown as soon as one partition is: Kafka may have that one."""
    found = {place: code for place, code in zip(PLACES, codes, strict=True) if code is not None}

    with pytest.raises(error, match=text) as raised:
        _expect_taken("g", dict.fromkeys(PLACES, 5), found)

    assert type(raised.value) is error


def test_a_reset_that_was_taken() -> None:
    """Of all partitions."""
    _expect_taken("g", dict.fromkeys(PLACES, 5), dict.fromkeys(PLACES, NONE))


class Looked(FakeContext):
    """Brokers have `orders` with a third partition, and `plain` no more."""

    def __init__(self) -> None:
        super().__init__()
        self.refreshed: list[list[str]] = []

    async def refresh_topics(self, names: Collection[str]) -> None:
        self.refreshed.append([*names])
        self.registry.learn("orders", ORDERS, 3)
        self.registry.forget("plain")

    async def find_topic(self, name: str) -> Any:
        return self.registry.topics.get(name)


def reset_of(*topics: str) -> GroupReset:
    wishes = tuple(Wish(topic, None) for topic in topics)
    return GroupReset(group="g", topics=wishes, to=ResetTo("earliest"))


async def test_named_topics_are_looked_up_with_one_question() -> None:
    """As they are now: of one that has grown, new partitions are reset as well."""
    context = Looked()

    places = await _find_places(reset_of("shop", "orders"), context)

    assert places == [("orders", 0), ("orders", 1), ("orders", 2), ("shop", 0)]
    assert context.refreshed == [["shop", "orders"]]


async def test_a_topic_that_was_deleted_is_named() -> None:
    """A reset of none of its partitions would look like a success."""
    with pytest.raises(ActionInvalid, match="there is no topic plain") as raised:
        await _find_places(reset_of("shop", "plain"), Looked())

    assert raised.value.field == "/topics/1/topic"
