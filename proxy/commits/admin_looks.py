"""Looks at Kafka for an operator: members of a group by any protocol, and offsets of many logs.

Source: Kafka protocol guide (DescribeGroups, ConsumerGroupDescribe, StreamsGroupDescribe,
ShareGroupDescribe, ListOffsets v1); KIP-848, KIP-932, KIP-1071.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
from kio.schema.streams_group_describe.v0.request import StreamsGroupDescribeRequest
from kio.schema.types import GroupId

from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_survey import GONE
from keylane.proxy.commits.log_ends import offsets_request
from keylane.proxy.groups.group_names import Place

ANSWER_S_MAX: Final = 10.0
"""Time for the answers to one look; an operator waits, and nothing else does."""
KINDS: Final[Mapping[str, Any]] = {
    "consumer": ConsumerGroupDescribeRequest,
    "streams": StreamsGroupDescribeRequest,
    "share": ShareGroupDescribeRequest,
}
"""Groups of other protocols than the classic one, where brokers know such."""
CLASSIC: Final = "classic"


class GroupMembers(NamedTuple):
    """Members of a group, in the words of its coordinator."""

    kind: str | None
    """`classic`, `consumer`, `streams` or `share`; None: there is no such group."""
    members: int


async def find_members(cluster: Cluster, group: str) -> GroupMembers:
    """Ask the group's coordinator. Raises: UpstreamLost."""
    async with _in_time(f"group {group}"):
        node = await cluster.coordinator_of(group)
        classic = DescribeGroupsRequest(
            groups=(GroupId(group),), include_authorized_operations=False
        )
        found = _entry_of(group, await cluster.ask_broker(node, classic))
        if found is not None and str(found.group_state) not in GONE:
            return GroupMembers(CLASSIC, len(found.members))
        is_there = found is not None and str(found.group_state) != "Dead"
        versions = await cluster.versions_of(node)
        for kind, request in KINDS.items():
            if int(request.__api_key__) not in versions:
                continue
            asked = request(group_ids=(GroupId(group),), include_authorized_operations=False)
            described = _entry_of(group, await cluster.ask_broker(node, asked))
            if described is not None:
                return GroupMembers(kind, len(described.members))
        return GroupMembers(CLASSIC if is_there else None, 0)


def _entry_of(group: str, answer: Any) -> Any:
    """Return the group in an answer; None: there is no such one. Raises: UpstreamLost."""
    if len(answer.groups) != 1:
        raise UpstreamLost(f"group {group}: the answer has {len(answer.groups)} groups")
    found = answer.groups[0]
    if found.error_code == ErrorCode.group_id_not_found:
        return None
    if found.error_code != ErrorCode.none:
        raise UpstreamLost(f"group {group}: {found.error_code.name}")
    return found


async def find_offsets(
    cluster: Cluster, places: Sequence[Place], timestamp: int
) -> dict[Place, int]:
    """Return offsets of many logs: EARLIEST, LATEST, or of a time in ms (-1: of none).

    Each leader is asked once. Raises: UpstreamLost, where a leader does not say.
    """
    async with _in_time("offsets of logs"):
        await cluster.refresh_topics({topic for topic, _ in places})
        asks = (
            cluster.ask_broker(leader, offsets_request(asked, timestamp))
            for leader, asked in _by_leader(cluster, places).items()
        )
        answers = await asyncio.gather(*asks)
    found: dict[Place, int] = {}
    for answer in answers:
        for topic in answer.topics:
            for entry in topic.partitions:
                if entry.error_code != ErrorCode.none:
                    raise UpstreamLost(
                        f"topic {topic.name} partition {entry.partition_index}: "
                        f"{entry.error_code.name}"
                    )
                found[str(topic.name), int(entry.partition_index)] = int(entry.offset)
    missing = [place for place in places if place not in found]
    if missing:
        topic, partition = missing[0]
        raise UpstreamLost(f"topic {topic} partition {partition}: no offset in the answer")
    return found


def _by_leader(cluster: Cluster, places: Iterable[Place]) -> dict[int, list[Place]]:
    """Return places by the broker that leads them. Raises: UpstreamLost."""
    found: dict[int, list[Place]] = {}
    for topic, partition in places:
        topic_id = cluster.registry.id_of_name(topic)
        leader = -1
        if topic_id is not None:
            leader, _ = cluster.leaders.get((topic_id, partition), (-1, -1))
        if leader < 0:
            raise UpstreamLost(f"topic {topic} partition {partition} has no leader")
        found.setdefault(leader, []).append((topic, partition))
    return found


@asynccontextmanager
async def _in_time(what: str) -> AsyncIterator[None]:
    """Bound the time inside. Raises: UpstreamLost, in the place of TimeoutError."""
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            yield
    except TimeoutError:
        raise UpstreamLost(f"{what}: no answer in {ANSWER_S_MAX:g} s") from None
