"""Proof that a session holds all of its partition that is not finished, up to the last one.

Source: KIP-932, KIP-1226 (lag); `GroupCoordinatorService.computeShareGroupLagAndBuildResponse` of
Apache Kafka 4.3; docs/decisions/048.

A broker skips records while their release is being written, and gives later ones first. After a
session was opened anew, such records are the lowest ones of their keys. The share coordinator says
the start offset and the lag, which is the number of offsets that are not finished up to the log
end. Both are of the last write: the start offset is not above the true one, and the lag not below.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.describe_share_group_offsets.v1.request import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.share.broker_session import SharedPlace

UNKNOWN: Final = -1


class Progress(NamedTuple):
    """Numbers of the share coordinator for a partition; -1: nothing was written yet."""

    start_offset: int
    lag: int


async def ask_progress(cluster: Cluster, place: SharedPlace) -> Progress:
    """Ask the coordinator of the group. Raises: UpstreamLost."""
    topic = DescribeShareGroupOffsetsRequestTopic(
        topic_name=TopicName(place.topic), partitions=(i32(place.partition),)
    )
    group = DescribeShareGroupOffsetsRequestGroup(group_id=GroupId(place.group), topics=(topic,))
    answer = await cluster.ask_coordinator(
        place.group, DescribeShareGroupOffsetsRequest(groups=(group,))
    )
    for described in answer.groups:
        if described.error_code:
            raise UpstreamLost(f"offsets of share {place}: {described.error_code.name}")
        for topic_answer in described.topics:
            for entry in topic_answer.partitions:
                if entry.error_code:
                    raise UpstreamLost(f"offsets of share {place}: {entry.error_code.name}")
                return Progress(int(entry.start_offset), int(entry.lag))
    raise UpstreamLost(f"offsets of share {place}: not in the answer")


def unfinished_below(progress: Progress, end_offset: int, log_end: int) -> int:
    """Return the offsets up to `end_offset` that are not finished, or more.

    log_end: of before the question, so that the true one then was not lower.
    """
    return max(0, progress.lag - (log_end - (end_offset + 1)))


def holds_all(progress: Progress, locked: int, end_offset: int, log_end: int) -> bool:
    """Return whether `locked` offsets up to `end_offset` are surely all that is not finished."""
    if progress.start_offset == UNKNOWN:
        return False
    if locked >= end_offset + 1 - progress.start_offset:
        return True
    return locked >= unfinished_below(progress, end_offset, log_end)
