"""Messages of both group protocols: values to kio's entities and back, with keylane's tags."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import kio.index
import pytest
from kio.schema.consumer_group_heartbeat.v1.response import Assignment, TopicPartitions
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.static.primitive import i32Timedelta

from keylane.assignor.protocol import (
    Subscription,
    read_allow_key_share,
    read_assignment,
    read_subscription,
    write_subscription,
)
from keylane.client.group.classic_calls import (
    VERSIONS_MAX,
    ClassicBeat,
    ClassicJoin,
    ClassicLeave,
    ClassicSync,
    call_entity,
    read_call_answer,
)
from keylane.client.group.classic_plan import (
    plan_generation,
    subscribed_topics,
    subscription_bytes,
)
from keylane.client.group.effects import GroupRefused
from keylane.client.group.heartbeats import (
    HeartbeatRequest,
    heartbeat_entity,
    read_heartbeat_answer,
)
from keylane.client.group.settings import GroupSettings
from keylane.client.values import TopicPartition
from keylane.errors import ConfigInvalid, FrameInvalid
from keylane.keyrange.space import KeyRange
from keylane.wire.entities import UNKNOWN, tagged_type
from keylane.wire.extensions import (
    ALLOW_KEY_SHARE,
    LANE_RANGES,
    LaneRange,
    read_extensions,
    write_lane_ranges,
)
from keylane.wire.messages import read_request, read_response, write_message
from keylane.wire.primitives import write_tags

response_type: Callable[[int, int], Any] = kio.index.load_response_schema

T, U = UUID(int=1), UUID(int=2)
FULL = HeartbeatRequest(
    group_id="g",
    member_id="m",
    epoch=0,
    instance_id="i",
    rack="r",
    rebalance_timeout_s=30.0,
    topics=frozenset({"t", "u"}),
    owned=frozenset({(T, 1), (T, 0), (U, 2)}),
    asks_ranges=True,
    allow_key_share=False,
)


def sent(request: HeartbeatRequest, version: int = 1) -> Any:
    body = write_message(heartbeat_entity(request, version))
    return read_request(68, version, memoryview(body))


def test_a_full_heartbeat_has_all_fields_and_both_tags() -> None:
    """Topics sorted, partitions by topic; LANE_RANGES is empty, ALLOW_KEY_SHARE is 0."""
    read = sent(FULL)

    assert read.member_epoch == 0
    assert (read.instance_id, read.rack_id) == ("i", "r")
    assert read.rebalance_timeout.total_seconds() == 30
    assert read.subscribed_topic_names == ("t", "u")
    owned = [(each.topic_id, each.partitions) for each in read.topic_partitions]
    assert owned == [(T, (0, 1)), (U, (2,))]
    own, rest = read_extensions(getattr(read, UNKNOWN))
    assert own == {LANE_RANGES: b"", ALLOW_KEY_SHARE: b"\x00"}
    assert rest == b"\x00"


def test_a_short_heartbeat_has_no_field_that_is_the_same() -> None:
    """Nulls, -1, and no tagged field."""
    read = sent(HeartbeatRequest(group_id="g", member_id="m", epoch=3))

    assert read.topic_partitions is None
    assert read.subscribed_topic_names is None
    assert read.subscribed_topic_regex is None
    assert read.rebalance_timeout.total_seconds() == -0.001
    assert not hasattr(read, UNKNOWN)


def test_version_0_has_no_pattern() -> None:
    """A subscription without one goes as it is; one with a pattern is refused here."""
    assert sent(replace(FULL, pattern=""), 0).member_id == "m"
    with pytest.raises(GroupRefused, match="v0 has no pattern"):
        sent(replace(FULL, pattern="t.*"), 0)


def heartbeat_answer(tags: bytes, *partitions: int, topic_id: UUID | None = T) -> Any:
    entry = tagged_type(TopicPartitions)(
        topic_id=topic_id, partitions=partitions, **{UNKNOWN: tags}
    )
    answer = response_type(68, 1)(
        throttle_time=i32Timedelta.parse(timedelta(0)),
        error_code=ErrorCode.none,
        member_id="m",
        member_epoch=4,
        heartbeat_interval=i32Timedelta.parse(timedelta(seconds=5)),
        assignment=Assignment(topic_partitions=(entry,)),
    )
    return read_response(68, 1, memoryview(write_message(answer)))


def test_an_assignment_says_the_keys_of_its_lanes() -> None:
    """LANE_RANGES of a topic has one entry for each index; without the tag they are whole."""
    lanes = [LaneRange(0, KeyRange(0, 9)), LaneRange(1, KeyRange(10, 19))]

    cut = read_heartbeat_answer(
        heartbeat_answer(write_tags({LANE_RANGES: write_lane_ranges(lanes)}), 6, 7)
    )
    whole = read_heartbeat_answer(heartbeat_answer(b"\x00", 6))

    assert (cut.code, cut.name, cut.epoch, cut.interval_s) == (0, "NONE", 4, 5.0)
    assert cut.assignment == ((T, 6, lanes[0]), (T, 7, lanes[1]))
    assert whole.assignment == ((T, 6, None),)


def test_lane_ranges_that_do_not_fit_are_no_answer() -> None:
    """One range for two indexes names the topic's id."""
    tags = write_tags({LANE_RANGES: write_lane_ranges([LaneRange(0, KeyRange(0, 9))])})

    with pytest.raises(FrameInvalid, match="1 lane ranges for 2 indexes"):
        read_heartbeat_answer(heartbeat_answer(tags, 6, 7))


JOIN = ClassicJoin(
    group_id="g",
    member_id="m",
    instance_id="i",
    session_timeout_s=6.0,
    rebalance_timeout_s=30.0,
    metadata=b"meta",
)
CALLS = (
    JOIN,
    ClassicSync(
        group_id="g", member_id="m", instance_id="i", generation_id=3, assignments=(("m", b"a"),)
    ),
    ClassicBeat(group_id="g", member_id="m", instance_id=None, generation_id=3),
    ClassicLeave(group_id="g", member_id="m"),
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_classic_calls_can_be_written_in_every_version(call) -> None:
    """Each version has the group's id, and what it has room for."""
    for version in range(VERSIONS_MAX[call.api_key] + 1):
        body = write_message(call_entity(call, version))
        read = read_request(call.api_key, version, memoryview(body))
        assert read.group_id == "g"
        if hasattr(read, "member_id"):
            assert read.member_id == "m"


def test_a_join_offers_the_stock_strategy() -> None:
    """Its name is cooperative-sticky, and the metadata is the subscription."""
    read = call_entity(JOIN, 9)

    assert [(each.name, each.metadata) for each in read.protocols] == [
        ("cooperative-sticky", b"meta")
    ]
    assert read.group_instance_id == "i"


def test_an_answer_of_a_join_has_the_members_for_its_leader() -> None:
    """Id, instance id and subscription of each."""
    answer = response_type(11, 9)(
        throttle_time=timedelta(0),
        error_code=ErrorCode.none,
        generation_id=2,
        protocol_name="cooperative-sticky",
        leader="m",
        member_id="m",
        members=(JoinGroupResponseMember(member_id="m", group_instance_id="i", metadata=b"x"),),
    )

    read = read_call_answer(answer)

    assert (read.generation_id, read.leader, read.members) == (2, "m", (("m", "i", b"x"),))


SETTINGS = GroupSettings(group_id="g", topics=frozenset({"t"}), rack="r")


def test_a_subscription_is_that_of_a_stock_member() -> None:
    """Version 3, owned partitions and their generation; the user data is the generation."""
    data = subscription_bytes(SETTINGS, {"t"}, {TopicPartition("t", 1)}, 7)

    assert read_subscription(data) == Subscription(
        version=3,
        topics=("t",),
        user_data=b"\x00\x00\x00\x07",
        owned=(("t", 1),),
        generation_id=7,
        rack="r",
    )
    assert read_allow_key_share(b"\x00\x00\x00\x07")


def test_a_member_of_whole_partitions_says_so() -> None:
    """With allow_individual_commit=False the user data is keylane's mark and 0."""
    settings = replace(SETTINGS, allow_individual_commit=False)

    read = read_subscription(subscription_bytes(settings, {"t"}, (), -1))

    assert not read_allow_key_share(read.user_data)


def member(name: str, *owned: int, generation_id: int = 1, version: int = 3):
    subscription = Subscription(
        version=version,
        topics=("t",),
        user_data=generation_id.to_bytes(4, "big", signed=True),
        owned=tuple(("t", index) for index in owned),
        generation_id=generation_id if version >= 2 else -1,
    )
    return name, None, write_subscription(subscription)


def numbers(plan) -> dict[str, set[int]]:
    return {name: {index for _, index in read_assignment(data).lanes} for name, data in plan}


def test_a_plan_gives_nothing_that_another_member_has() -> None:
    """A new member gets what is free at first, and the rest as it is no longer owned."""
    first = numbers(plan_generation([member("a", 0, 1, 2, 3), member("b")], {"t": 4}))
    assert len(first["a"]) == 2
    assert first["b"] == set()

    second = numbers(plan_generation([member("a", *first["a"]), member("b")], {"t": 4}))

    assert second["a"] == first["a"]
    assert second["a"] | second["b"] == {0, 1, 2, 3}


def test_an_older_claim_does_not_count() -> None:
    """Two members claim partition 0: that of the newer generation, in the user data, has it."""
    old = member("a", 0, generation_id=4, version=1)
    new = member("b", 0, generation_id=5)

    plan = numbers(plan_generation([old, new], {"t": 1}))

    assert plan["a"] == set()


def test_a_member_with_another_protocols_bytes_gets_nothing() -> None:
    """The others go on; topics are those of members that can be read."""
    members = [member("a"), ("b", None, b"\xff")]

    plan = numbers(plan_generation(members, {"t": 2}))

    assert plan == {"a": {0, 1}, "b": set()}
    assert subscribed_topics(members) == {"t"}


def test_a_topic_without_partitions_is_in_no_assignment() -> None:
    """A subscribed topic that nothing is known of leaves the plan empty."""
    assert numbers(plan_generation([member("a", 3)], {"t": 0})) == {"a": set()}


def test_an_assignment_of_no_topic_is_no_answer() -> None:
    """The zero id is no topic's."""
    with pytest.raises(FrameInvalid, match="zero id"):
        read_heartbeat_answer(heartbeat_answer(b"\x00", 6, topic_id=None))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"group_id": ""}, "group_id"),
        ({"group_protocol": "share"}, "group_protocol: 'share'"),
        ({"session_timeout_s": 0.0}, "session_timeout_s: must be positive"),
    ],
)
def test_settings_that_cannot_be_used_name_their_key(values, text) -> None:
    """No group, an unknown protocol, a time that is none."""
    with pytest.raises(ConfigInvalid, match=text):
        GroupSettings(**({"group_id": "g"} | values))
