"""OffsetCommit, OffsetFetch and ListOffsets as the consumer uses them.

Source: OffsetCommitRequest.json (v8 to v9), OffsetFetchRequest.json (v8 to v9),
ListOffsetsRequest.json (v7) of Apache Kafka 4.3; docs/protocol-extensions.md for ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from kio.index import load_request_schema
from kio.schema.list_offsets.v7 import request as list_request

from keylane.client import errors as e
from keylane.client.cluster import ClusterClient
from keylane.client.settings import RANGES_PER_REQUEST_MAX
from keylane.client.values import Committed, KeyRanges, TopicPartition
from keylane.errors import FrameInvalid, KeylaneError
from keylane.offsets.intervals import Range
from keylane.wire import extensions as x
from keylane.wire.entities import schema_fields, tagged_type
from keylane.wire.extensions import LaneRange
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_response, write_message
from keylane.wire.offset_commit import (
    CommitPartition,
    CommitRequest,
    NamedTopic,
    read_commit_response,
    write_commit_request,
)
from keylane.wire.primitives import NO_TAGS, read_tags, write_tags

COMMIT_VERSION_MIN: Final = 8
COMMIT_VERSION_MAX: Final = 9
FETCH_VERSION_MIN: Final = 8
FETCH_VERSION_MAX: Final = 9
LIST_VERSION: Final = 7
NO_OFFSET: Final = -1
NO_STABLE_OFFSET: Final = -1


class CommitMember(Protocol):
    """The member that a commit is of."""

    @property
    def group_id(self) -> str:
        """The group."""

    @property
    def member_id(self) -> str:
        """Empty: it is in no group."""

    @property
    def epoch_or_generation(self) -> int:
        """Member epoch (KIP-848) or generation; -1: it is in no group."""

    @property
    def instance_id(self) -> str | None:
        """Name of a static member (KIP-345)."""

    @property
    def is_moving(self) -> bool:
        """True: the group may have a next generation, which the member does not know yet."""


class LoneMember(NamedTuple):
    """A consumer that commits to a group without being in it, as with `assign`."""

    group_id: str
    member_id: str = ""
    epoch_or_generation: int = -1
    instance_id: str | None = None
    is_moving: bool = False


class CommitEntry(NamedTuple):
    """One partition of a commit."""

    part: TopicPartition
    offset: int
    """Next offset to read; NO_OFFSET: `ranges` say what is done."""
    ranges: tuple[Range, ...] = ()
    key_ranges: KeyRanges = ()
    """The keys that it is about; () for a partition or lane as it stands."""


class CommitReply(NamedTuple):
    """The answer for one partition."""

    error_code: int
    draft_code: int
    stable_offset: int


class FoundOffset(NamedTuple):
    """The answer of ListOffsets."""

    offset: int
    """NO_OFFSET: no record has this timestamp or a later one."""
    timestamp_ms: int


# -- commit -----------------------------------------------------------------------------------


def split_entries(
    entries: Iterable[CommitEntry], ranges_max: int = RANGES_PER_REQUEST_MAX
) -> Iterator[list[CommitEntry]]:
    """Deal entries to requests with at most so many ranges each; a long entry becomes several."""
    request: list[CommitEntry] = []
    room = ranges_max
    for entry in entries:
        rest = entry.ranges
        if not rest:
            request.append(entry)
        while rest:
            part, rest = rest[:room], rest[room:]
            request.append(entry._replace(ranges=part))
            room -= len(part)
            if room == 0:
                yield request
                request, room = [], ranges_max
    if request:
        yield request


def write_commit(member: CommitMember, entries: Sequence[CommitEntry], version: int) -> bytes:
    """Return the body of an OffsetCommit."""
    by_topic: dict[str, list[CommitPartition]] = {}
    for part, offset, ranges, key_ranges in entries:
        own = {}
        if ranges:
            own[x.OFFSET_RANGES] = x.write_pairs(ranges)
        if key_ranges:
            own[x.KEY_RANGES] = x.write_key_ranges(key_ranges)
        tags = x.with_extensions(NO_TAGS, own)
        entry = CommitPartition(part.partition, offset, -1, "", tags)
        by_topic.setdefault(part.topic, []).append(entry)
    topics = tuple(NamedTopic(topic, tuple(parts)) for topic, parts in by_topic.items())
    request = CommitRequest(
        member.group_id, member.epoch_or_generation, member.member_id, topics, member.instance_id
    )
    return write_commit_request(request, version)


def read_commit(body: memoryview, version: int) -> dict[TopicPartition, CommitReply]:
    """Return the outcome of each partition. Raises: FrameInvalid."""
    found = {}
    for topic in read_commit_response(body, version).topics:
        assert isinstance(topic, NamedTopic), "topics have names below v10"
        for index, code, section in topic.partitions:
            own = read_tags(section) if section != NO_TAGS else {}
            found[TopicPartition(topic.name, index)] = CommitReply(
                int(code),
                x.read_int16(own[x.DRAFT_ERROR]) if x.DRAFT_ERROR in own else e.NONE,
                x.read_int64(own[x.STABLE_OFFSET]) if x.STABLE_OFFSET in own else NO_STABLE_OFFSET,
            )
    return found


async def commit(
    cluster: ClusterClient, member: CommitMember, entries: Sequence[CommitEntry]
) -> dict[TopicPartition, CommitReply]:
    """Send one OffsetCommit to the group's coordinator.

    Raises: Disconnected, CoordinatorUnavailable, GroupDenied, VersionUnsupported, FrameInvalid.
    """
    node_id = await cluster.coordinator_of(member.group_id)
    version = await cluster.version_for(
        node_id, ApiKey.OFFSET_COMMIT, COMMIT_VERSION_MAX, COMMIT_VERSION_MIN
    )
    request = write_commit(member, entries, version)
    try:
        body = await cluster.ask(node_id, ApiKey.OFFSET_COMMIT, version, request)
    except e.Disconnected:
        cluster.coordinator_lost(member.group_id)
        raise
    return read_commit(body, version)


# -- committed offsets ------------------------------------------------------------------------


def make_offset_fetch(
    group_id: str, parts: Mapping[TopicPartition, KeyRanges], version: int, *, has_ranges: bool
) -> Any:
    """Return the request; has_ranges: the answer is to have ranges and stable offsets."""
    schema: Any = load_request_schema(ApiKey.OFFSET_FETCH, version)
    group_type, topic_type = _nested_types(schema)
    by_topic: dict[str, list[TopicPartition]] = {}
    for part in parts:
        by_topic.setdefault(part.topic, []).append(part)
    topics = []
    for name, of_topic in by_topic.items():
        indexes = tuple(part.partition for part in of_topic)
        if not has_ranges:
            topics.append(topic_type(name=name, partition_indexes=indexes))
            continue
        keys = {part.partition: parts[part] for part in of_topic if parts[part]}
        tags = write_tags({x.PARTITION_KEY_RANGES: x.write_partition_key_ranges(keys)})
        make = tagged_type(topic_type)
        topics.append(make(name=name, partition_indexes=indexes, unknown_tags=tags))
    group = group_type(group_id=group_id, topics=tuple(topics))
    return schema(groups=(group,), require_stable=True)


def _nested_types(schema: Any) -> tuple[Any, Any]:
    """Return the types of a group and of a topic of an OffsetFetch request."""
    group = next(f.entity_type for f in schema_fields(schema) if f.name == "groups")
    topic = next(f.entity_type for f in schema_fields(group) if f.name == "topics")
    return group, topic


class FetchedOffsets(NamedTuple):
    """The answer of OffsetFetch."""

    found: dict[TopicPartition, Committed | None]
    """None: nothing is committed."""
    errors: dict[Any, int]
    """Codes of partitions; of "" for the group."""
    lanes: dict[TopicPartition, LaneRange]
    """The meaning of lane indexes."""


def read_offset_fetch(answer: Any) -> FetchedOffsets:
    """Return what is committed. Raises: FrameInvalid."""
    group = answer.groups[0]
    if group.error_code:
        return FetchedOffsets({}, {"": int(group.error_code)}, {})
    found: dict[TopicPartition, Committed | None] = {}
    errors: dict[Any, int] = {}
    lanes: dict[TopicPartition, LaneRange] = {}
    for topic in group.topics:
        lanes |= _read_lanes(topic)
        for each in topic.partitions:
            part = TopicPartition(topic.name, int(each.partition_index))
            if each.error_code:
                errors[part] = int(each.error_code)
                continue
            own = read_tags(getattr(each, "unknown_tags", NO_TAGS))
            ranges: tuple[Range, ...] = ()
            if x.OFFSET_RANGES in own:
                ranges = x.read_pairs(own[x.OFFSET_RANGES])
            stable = (
                x.read_int64(own[x.STABLE_OFFSET]) if x.STABLE_OFFSET in own else NO_STABLE_OFFSET
            )
            offset = int(each.committed_offset)
            if offset < 0 and ranges:
                offset = 0  # ranges alone do not say where the group began
            found[part] = None if offset < 0 else Committed(
                offset, ranges, stable, each.metadata or "", int(each.committed_leader_epoch)
            )  # fmt: skip
    return FetchedOffsets(found, errors, lanes)


def _read_lanes(topic: Any) -> dict[TopicPartition, LaneRange]:
    """Return what the lane indexes of a topic's answer stand for; none without lanes."""
    own = read_tags(getattr(topic, "unknown_tags", NO_TAGS))
    if x.LANE_RANGES not in own:
        return {}
    ranges = x.read_lane_ranges(own[x.LANE_RANGES])
    if len(ranges) != len(topic.partitions):
        raise FrameInvalid(f"{len(ranges)} lane ranges of {len(topic.partitions)} lanes")
    return {
        TopicPartition(topic.name, int(each.partition_index)): lane
        for each, lane in zip(topic.partitions, ranges, strict=True)
    }


async def fetch_committed(
    cluster: ClusterClient, group_id: str, parts: Mapping[TopicPartition, KeyRanges]
) -> FetchedOffsets:
    """Ask the group's coordinator; returns as `read_offset_fetch` does.

    parts: with the keys of each, () for a partition or lane as it stands.
    Raises: Disconnected, CoordinatorUnavailable, GroupDenied, VersionUnsupported, FrameInvalid.
    """
    node_id = await cluster.coordinator_of(group_id)
    version = await cluster.version_for(
        node_id, ApiKey.OFFSET_FETCH, FETCH_VERSION_MAX, FETCH_VERSION_MIN
    )
    request = make_offset_fetch(group_id, parts, version, has_ranges=cluster.has_ranges)
    try:
        body = await cluster.ask(node_id, ApiKey.OFFSET_FETCH, version, write_message(request))
    except e.Disconnected:
        cluster.coordinator_lost(group_id)
        raise
    return read_offset_fetch(read_response(ApiKey.OFFSET_FETCH, version, body))


# -- offsets of the log -----------------------------------------------------------------------


def make_list_offsets(
    parts: Mapping[TopicPartition, int], isolation: int, epoch_of: Callable[[TopicPartition], int]
) -> Any:
    """Return the request for (partition: timestamp)."""
    by_topic: dict[str, list[Any]] = {}
    for part, timestamp in parts.items():
        entry = list_request.ListOffsetsPartition(
            partition_index=part.partition,  # type: ignore[arg-type]  # kio's i32 is an int
            current_leader_epoch=epoch_of(part),  # type: ignore[arg-type]
            timestamp=timestamp,  # type: ignore[arg-type]
        )
        by_topic.setdefault(part.topic, []).append(entry)
    make_topic: Any = list_request.ListOffsetsTopic
    topics = tuple(
        make_topic(name=name, partitions=tuple(entries)) for name, entries in by_topic.items()
    )
    return list_request.ListOffsetsRequest(
        replica_id=-1,  # type: ignore[arg-type]
        isolation_level=isolation,  # type: ignore[arg-type]
        topics=topics,
    )


async def list_offsets(
    cluster: ClusterClient, parts: Mapping[TopicPartition, int], isolation: int
) -> tuple[dict[TopicPartition, FoundOffset], dict[TopicPartition, int]]:
    """Ask the leaders; return what they found, and the error codes of the others.

    parts: timestamps in milliseconds, or `reading.EARLIEST`, `reading.LATEST`.
    Partitions without a leader have LEADER_NOT_AVAILABLE, those of a node that is away too.
    """
    found: dict[TopicPartition, FoundOffset] = {}
    errors: dict[TopicPartition, int] = {}
    by_node: dict[int, dict[TopicPartition, int]] = {}
    for part, timestamp in parts.items():
        leader = cluster.leader_of(part)
        if leader is None:
            errors[part] = e.LEADER_NOT_AVAILABLE
        else:
            by_node.setdefault(leader, {})[part] = timestamp
    for node_id, asked in by_node.items():
        make = partial(_make_list, asked, isolation, cluster.leader_epoch_of)
        try:
            answer = await cluster.ask_entity(node_id, ApiKey.LIST_OFFSETS, LIST_VERSION, make)
        except e.Disconnected:
            errors |= dict.fromkeys(asked, e.LEADER_NOT_AVAILABLE)
            continue
        for topic in answer.topics:
            for each in topic.partitions:
                part = TopicPartition(topic.name, int(each.partition_index))
                if each.error_code:
                    errors[part] = int(each.error_code)
                else:
                    found[part] = FoundOffset(int(each.offset), int(each.timestamp))
    return found, errors


def _make_list(
    parts: Mapping[TopicPartition, int],
    isolation: int,
    epoch_of: Callable[[TopicPartition], int],
    _version: int,
) -> Any:
    return make_list_offsets(parts, isolation, epoch_of)


def place_of(part: TopicPartition) -> str:
    """Name a partition in the text of an error."""
    return f"topic {part.topic} partition {part.partition}"


def first_error(
    errors: Mapping[Any, int], group_id: str, codes: Collection[int]
) -> KeylaneError | None:
    """Return the error of the first code that is none of `codes`; None: there is none."""
    for part, code in errors.items():
        if code not in codes:
            place = place_of(part) if isinstance(part, TopicPartition) else f"group {group_id}"
            return e.error_of(code, place)
    return None
