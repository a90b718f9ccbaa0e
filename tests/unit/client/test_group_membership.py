"""The shell of a membership, on virtual time, with a coordinator that answers by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import kio.index
import pytest
from kio.schema.consumer_group_heartbeat.v1.response import Assignment, TopicPartitions
from kio.schema.errors import ErrorCode
from kio.schema.join_group.v9.response import JoinGroupResponseMember
from kio.static.primitive import i32Timedelta

from keylane.assignor.protocol import read_subscription
from keylane.client.group.membership import GroupMembership
from keylane.client.group.settings import GroupSettings
from keylane.client.values import TopicPartition
from keylane.errors import KeylaneError, UpstreamLost
from keylane.wire.extensions import LaneRange
from tests.virtual_time import run_virtual

response_type: Callable[[int, int], Any] = kio.index.load_response_schema

T = UUID(int=1)
NONE = i32Timedelta.parse(timedelta(0))
Answer = Callable[[Any], Any]


class Refused(KeylaneError):
    """A node without the API."""

    error_code = 35


class Coordinator:
    """Answers each request by the rule for its API; keeps all requests."""

    def __init__(self) -> None:
        self.has_ranges = False
        self.rules: dict[int, Answer] = {
            68: lambda request: beat(epoch=max(request.member_epoch, 1)),
            11: self.join,
            12: lambda _: simple(12),
            13: lambda _: simple(13, members=()),
            14: lambda request: sync(request.assignments[0].assignment),
        }
        self.requests: list[Any] = []
        self.names = {T: "t"}
        self.counts = {"t": 2, "u": 1}
        self.lost = self.refreshed = 0

    async def ask_coordinator(
        self,
        group_id: str,
        api_key: int,
        version_max: int,
        make: Callable[[int], Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        assert group_id == "g"
        assert timeout_s is not None
        request = make(version_max)
        self.requests.append(request)
        answer = self.rules[api_key](request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def join(self, request: Any) -> Any:
        if not request.member_id:
            return joined(code=79, member_id="m")
        return joined(member_id="m", metadata=request.protocols[0].metadata)

    def coordinator_lost(self, group_id: str) -> None:
        self.lost += 1

    async def refresh(self) -> None:
        self.refreshed += 1

    async def topics(self) -> list[str]:
        return sorted(self.counts)

    async def partitions_of(self, topic: str) -> list[int]:
        return list(range(self.counts.get(topic, 0)))

    def topic_name(self, topic_id: UUID) -> str | None:
        return self.names.get(topic_id)

    def sent(self, name: str) -> list[Any]:
        return [each for each in self.requests if type(each).__name__ == name]


def beat(code: int = 0, message: str | None = None, epoch: int = 1, parts: Any = None) -> Any:
    assignment = None
    if parts is not None:
        entries = tuple(TopicPartitions(topic_id=t, partitions=p) for t, p in parts.items())
        assignment = Assignment(topic_partitions=entries)
    return response_type(68, 1)(
        throttle_time=NONE,
        error_code=ErrorCode(code),
        error_message=message,
        member_id="m",
        member_epoch=epoch,
        heartbeat_interval=i32Timedelta.parse(timedelta(seconds=3)),
        assignment=assignment,
    )


def joined(code: int = 0, member_id: str = "", metadata: bytes | None = None) -> Any:
    members: tuple[JoinGroupResponseMember, ...] = ()
    if metadata is not None:
        members = (JoinGroupResponseMember(member_id=member_id, metadata=metadata),)
    return response_type(11, 9)(
        throttle_time=NONE,
        error_code=ErrorCode(code),
        generation_id=4,
        protocol_name="cooperative-sticky",
        leader="m",
        member_id=member_id,
        members=members,
    )


def sync(assignment: bytes) -> Any:
    schema = response_type(14, 5)
    return schema(throttle_time=NONE, error_code=ErrorCode.none, assignment=assignment)


def simple(api_key: int, code: int = 0, **values: Any) -> Any:
    schema = response_type(api_key, {12: 4, 13: 5}[api_key])
    return schema(throttle_time=NONE, error_code=ErrorCode(code), **values)


class Consumer:
    """An assignee that keeps its calls."""

    def __init__(self) -> None:
        self.parts: dict[TopicPartition, LaneRange | None] = {}
        self.revoking: set[TopicPartition] = set()
        self.lost: set[TopicPartition] = set()
        self.errors: list[KeylaneError] = []
        self.breaks = False

    def on_assigned(self, parts: Mapping[TopicPartition, LaneRange | None]) -> None:
        if self.breaks:
            raise RuntimeError("a bug of the consumer")
        self.parts.update(parts)

    def on_revoke_requested(self, parts: Collection[TopicPartition], deadline_s: float) -> None:
        self.revoking.update(parts)

    def on_lost(self, parts: Collection[TopicPartition]) -> None:
        self.lost.update(parts)

    def on_group_error(self, error: KeylaneError) -> None:
        self.errors.append(error)


class Scene:
    """A membership with both its sides."""

    def __init__(self, protocol: str, **options: Any) -> None:
        values: dict[str, Any] = {"topics": frozenset({"t"}), "metadata_max_age_s": 20.0, **options}
        settings = GroupSettings(group_id="g", group_protocol=protocol, **values)
        self.cluster, self.consumer = Coordinator(), Consumer()
        self.membership = GroupMembership(self.cluster, settings, self.consumer)


def play(scene: Scene, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        await scene.membership.start()
        await act()
        await scene.membership.leave()

    run_virtual(whole)


def part(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def test_heartbeats_go_on_and_end_with_a_leave() -> None:
    """A join, an acknowledgement, one each 3 s, and epoch -1 at the end."""
    scene = Scene("consumer")
    scene.cluster.rules[68] = lambda request: beat(
        parts={T: (0, 1)} if request.member_epoch == 0 else None
    )

    async def act() -> None:
        await asyncio.sleep(7)
        assert scene.consumer.parts == {part(0): None, part(1): None}
        assert scene.membership.owned == {part(0), part(1)}
        assert scene.membership.member[:4] == ("g", "m", 1, None)

    play(scene, act)

    assert [each.member_epoch for each in scene.cluster.requests] == [0, 1, 1, 1, -1]
    assert scene.membership.owned == frozenset()


def test_a_release_goes_at_once() -> None:
    """What is asked back is released, and the next heartbeat is sent then, without it."""
    scene = Scene("consumer")
    parts: dict[str, tuple[int, ...]] = {"now": (0, 1)}
    scene.cluster.rules[68] = lambda _: beat(parts={T: parts["now"]})

    async def act() -> None:
        await asyncio.sleep(1)
        parts["now"] = (0,)
        await asyncio.sleep(3)
        assert scene.consumer.revoking == {part(1)}
        before = len(scene.cluster.requests)
        scene.membership.release([part(1)])
        await asyncio.sleep(0.01)
        (sent,) = scene.cluster.requests[before:]
        assert sent.topic_partitions[0].partitions == (0,)

    play(scene, act)


def test_a_broken_connection_has_the_coordinator_looked_up() -> None:
    """Two errors worth a retry: the coordinator is lost twice, the join is sent a third time."""
    scene = Scene("consumer")
    scene.cluster.rules[68] = lambda request: (
        UpstreamLost("gone") if len(scene.cluster.requests) < 3 else beat()
    )

    async def act() -> None:
        await asyncio.sleep(1)
        assert scene.cluster.lost == 2
        assert [each.member_epoch for each in scene.cluster.requests] == [0, 0, 0]

    play(scene, act)


def test_metadata_is_read_for_an_unknown_topic() -> None:
    """Its partitions are taken as its name is known; metadata is read once a second until then."""
    scene = Scene("consumer")
    scene.cluster.names = {}
    scene.cluster.rules[68] = lambda request: beat(parts={T: (0,)})

    async def act() -> None:
        await asyncio.sleep(2.5)
        assert scene.cluster.refreshed == 3
        assert not scene.consumer.parts
        scene.cluster.names[T] = "t"
        await asyncio.sleep(1)
        assert scene.consumer.parts == {part(0): None}

    play(scene, act)


@pytest.mark.parametrize(
    "refusal", [lambda _: Refused("node 1 has no API 68"), lambda _: beat(35), lambda _: beat(69)]
)
def test_a_coordinator_without_the_consumer_protocol_gets_the_classic_one(refusal) -> None:
    """With "auto": no such API, UNSUPPORTED_VERSION, GROUP_ID_NOT_FOUND."""
    scene = Scene("auto")
    scene.cluster.rules[68] = refusal

    async def act() -> None:
        await asyncio.sleep(1)
        assert scene.membership.protocol == "classic"
        assert scene.consumer.parts == {part(0): None, part(1): None}
        assert scene.membership.member[:4] == ("g", "m", 4, None)
        assert not scene.consumer.errors

    play(scene, act)

    assert len(scene.cluster.sent("LeaveGroupRequest")) == 1


def test_a_refusal_by_both_protocols_has_the_first_ones_words() -> None:
    """INVALID_REQUEST with a message, then a classic join that is refused: the message stays."""
    scene = Scene("auto")
    scene.cluster.rules[68] = lambda _: beat(42, "the group reads t.lanes-8")
    scene.cluster.rules[11] = lambda _: joined(code=42)

    async def act() -> None:
        await asyncio.sleep(1)
        (error,) = scene.consumer.errors
        assert "the group reads t.lanes-8" in str(error)

    play(scene, act)


def test_a_refusal_of_the_chosen_protocol_is_published() -> None:
    """With "consumer" there is no other protocol to take."""
    scene = Scene("consumer")
    scene.cluster.rules[68] = lambda _: beat(69, "not a consumer group")

    async def act() -> None:
        await asyncio.sleep(1)
        assert [str(each) for each in scene.consumer.errors] == [
            "group g: GROUP_ID_NOT_FOUND (69): not a consumer group"
        ]
        assert len(scene.cluster.requests) == 1

    play(scene, act)


def test_a_leader_plans_anew_as_a_topic_grows() -> None:
    """Metadata is read each 20 s; with a third partition the leader joins again."""
    scene = Scene("classic")

    async def act() -> None:
        await asyncio.sleep(30)
        assert len(scene.cluster.sent("JoinGroupRequest")) == 2
        scene.cluster.counts["t"] = 3
        await asyncio.sleep(20)
        assert scene.consumer.parts.keys() == {part(0), part(1), part(2)}
        assert len(scene.cluster.sent("JoinGroupRequest")) == 3

    play(scene, act)


def test_a_classic_pattern_is_matched_here() -> None:
    """Topics that match as a whole are subscribed; a new one is found within 20 s."""
    scene = Scene("classic", topics=frozenset(), pattern="t|u.*")

    async def act() -> None:
        await asyncio.sleep(1)
        scene.cluster.counts["tu"] = scene.cluster.counts["uv"] = 1
        await asyncio.sleep(25)
        assert {each.topic for each in scene.consumer.parts} == {"t", "u", "uv"}
        last = scene.cluster.sent("JoinGroupRequest")[-1]
        assert read_subscription(last.protocols[0].metadata).topics == ("t", "u", "uv")

    play(scene, act)


@pytest.mark.parametrize(("protocol", "name"), [("consumer", "Consumer"), ("classic", "Join")])
def test_a_rejoin_returns_with_the_answer(protocol, name) -> None:
    """One more request, of all fields or a JoinGroup, before it returns."""
    scene = Scene(protocol)

    async def act() -> None:
        await asyncio.sleep(1)
        before = len(scene.cluster.requests)
        await scene.membership.rejoin()
        first = scene.cluster.requests[before]
        assert type(first).__name__.startswith(name)
        assert scene.membership.member.epoch_or_generation > 0

    play(scene, act)


def test_a_rejoin_of_a_refused_member_returns() -> None:
    """There is nothing to wait for."""
    scene = Scene("consumer")
    scene.cluster.rules[68] = lambda _: beat(30)

    async def act() -> None:
        await asyncio.sleep(1)
        await scene.membership.rejoin()

    play(scene, act)


def test_a_later_poll_joins_again() -> None:
    """A member without polls for 5 s is out; the next poll has it joined at once."""
    scene = Scene("consumer", rebalance_timeout_s=5.0)

    async def act() -> None:
        await asyncio.sleep(6)
        assert scene.membership.member.epoch_or_generation == -1
        scene.membership.note_poll()
        await asyncio.sleep(0.01)
        assert scene.membership.member.epoch_or_generation == 1

    play(scene, act)


def test_a_leave_without_an_answer_ends_after_five_seconds() -> None:
    """The coordinator hangs."""
    scene = Scene("consumer")
    hangs: asyncio.Future[None] | None = None

    async def hang(*_: Any, **__: Any) -> Any:
        nonlocal hangs
        hangs = asyncio.get_running_loop().create_future()
        await hangs

    async def act() -> None:
        await asyncio.sleep(1)
        scene.cluster.ask_coordinator = hang  # type: ignore[method-assign]
        began_s = asyncio.get_running_loop().time()
        await scene.membership.leave()
        assert asyncio.get_running_loop().time() - began_s == 5

    play(scene, act)


def test_a_bug_of_the_consumer_is_published_and_logged(caplog) -> None:
    """The membership ends, and the consumer has the error for its next poll."""
    scene = Scene("consumer")
    scene.consumer.breaks = True
    scene.cluster.rules[68] = lambda _: beat(parts={T: (0,)})

    async def act() -> None:
        await asyncio.sleep(1)
        (error,) = scene.consumer.errors
        assert "a bug of the consumer" in str(error)
        assert scene.consumer.lost == {part(0)}
        await scene.membership.rejoin()

    play(scene, act)

    assert "task failed" in caplog.text


def test_a_membership_that_is_not_started_keeps_its_wishes() -> None:
    """A subscription before the start counts; the other wishes do nothing."""
    scene = Scene("consumer")
    scene.membership.release([part(0)])
    scene.membership.note_poll()
    assert scene.membership.member[:4] == ("g", "", -1, None)
    assert scene.membership.owned == frozenset()
    run_virtual(scene.membership.leave)
    scene.membership.subscribe(["u"], None)

    async def act() -> None:
        await asyncio.sleep(1)
        assert scene.cluster.requests[0].subscribed_topic_names == ("u",)

    play(scene, act)


def test_a_running_member_changes_its_subscription() -> None:
    """The next heartbeat is sent at once, with the topics."""
    scene = Scene("consumer")

    async def act() -> None:
        await asyncio.sleep(1)
        scene.membership.subscribe(["u"], None)
        await asyncio.sleep(0.01)
        assert scene.cluster.requests[-1].subscribed_topic_names == ("u",)

    play(scene, act)


def test_a_session_that_is_over_is_published() -> None:
    """The coordinator fences the member: the consumer has lost what it had."""
    scene = Scene("consumer")
    scene.cluster.rules[68] = lambda request: (
        beat(110) if request.member_epoch else beat(parts={T: (0,)})
    )

    async def act() -> None:
        await asyncio.sleep(0.5)
        assert scene.consumer.lost == {part(0)}
        assert len(scene.cluster.requests) < 20  # joins that end at once are not repeated at once

    play(scene, act)


def test_a_refusal_of_the_look_up_ends_the_classic_join() -> None:
    """An error that no retry changes is fatal, with its own text."""
    scene = Scene("classic")
    scene.cluster.rules[11] = lambda _: Refused("node 1 has no API 11")

    async def act() -> None:
        await asyncio.sleep(1)
        assert [str(each) for each in scene.consumer.errors] == [
            "group g: Refused (35): node 1 has no API 11"
        ]

    play(scene, act)


@pytest.mark.parametrize(("retriable", "count"), [(True, 2), (False, 0)])
def test_a_topic_that_cannot_be_counted(retriable, count, caplog) -> None:
    """Metadata that is away is asked for again; a topic that is denied has no partition."""
    scene = Scene("classic")
    counted = scene.cluster.partitions_of
    failures = iter([UpstreamLost("gone") if retriable else Refused("denied")])

    async def partitions_of(topic: str) -> list[int]:
        failure = next(failures, None)
        if failure is not None:
            raise failure
        return await counted(topic)

    scene.cluster.partitions_of = partitions_of  # type: ignore[method-assign]

    async def act() -> None:
        await asyncio.sleep(2)
        assert len(scene.consumer.parts) == count

    play(scene, act)

    assert ("metadata not read group=g reason=gone" in caplog.text) == retriable
