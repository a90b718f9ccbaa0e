"""A share group described: by its coordinator, and by the windows of this node.

Source: KIP-932 (ShareGroupDescribe), KIP-1226 (lag); docs/decisions/048.

keylane asks with its own login. A window is at the node that clients of its partition are sent to:
of windows elsewhere the report names the node.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
from kio.schema.types import GroupId
from kio.static.constants import EntityType

from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.control.shares.report import (
    ShareMemberReport,
    SharePartitionReport,
    ShareReport,
    report_window,
)
from keylane.proxy.control.shares.windows import SharedWindow, look_at_windows
from keylane.proxy.share.groups import OrderedGroups
from keylane.proxy.topics.placement import Placement
from keylane.wire.header import ApiKey

log = logging.getLogger("keylane.share")

DESCRIBE_VERSION: Final = 1
"""The first one that is stable (Kafka 4.1)."""
LAG_VERSION: Final = 1
"""Version of DescribeShareGroupOffsets that has the lag (Kafka 4.2)."""

SharePlace = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedShares:
    """A share group as its coordinator describes it, and its report."""

    state: str
    assignor: str
    coordinator: int
    epoch: int
    report: ShareReport


class _Progress(NamedTuple):
    """Offsets of a partition; -1: not known."""

    start_offset: int
    lag: int


class ShareDescriber:
    """Puts together what a group's coordinator and this node know of a share group."""

    def __init__(self, cluster: Cluster, ordered: OrderedGroups, placement: Placement) -> None:
        self._cluster, self._ordered, self._placement = cluster, ordered, placement

    def groups(self) -> list[str]:
        """Return the ordered groups that have open partitions here."""
        return sorted({partition.place.group for partition in self._ordered.partitions()})

    def is_open(self, group: str) -> bool:
        """Return whether a group has open partitions here."""
        return any(partition.place.group == group for partition in self._ordered.partitions())

    async def describe(self, group: str) -> DescribedShares | None:
        """Ask and put together; None: there is no such share group. Raises: UpstreamLost."""
        cluster = self._cluster
        coordinator = await cluster.coordinator_of(group)
        versions = await cluster.versions_of(coordinator)
        if versions.get(ApiKey.SHARE_GROUP_DESCRIBE, -1) < DESCRIBE_VERSION:
            return None
        request = ShareGroupDescribeRequest(
            group_ids=(GroupId(group),), include_authorized_operations=False
        )
        described = (await cluster.ask_broker(coordinator, request)).groups[0]
        if described.error_code == ErrorCode.group_id_not_found:
            return None
        if described.error_code != ErrorCode.none:
            raise UpstreamLost(f"share group {group}: {described.error_code.name}")
        version = min(versions.get(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, -1), LAG_VERSION)
        progress = await self._ask_progress(group, coordinator, version) if version >= 0 else {}
        windows = await look_at_windows(self._ordered, group)
        return DescribedShares(
            state=str(described.group_state),
            assignor=str(described.assignor_name),
            coordinator=coordinator,
            epoch=int(described.group_epoch),
            report=ShareReport(
                is_ordered=self._ordered.has_group(group),
                members=tuple(map(_member, described.members)),
                partitions=tuple(self._partitions(group, progress, windows)),
            ),
        )

    async def _ask_progress(
        self, group: str, coordinator: int, version: int
    ) -> Mapping[SharePlace, _Progress]:
        """Return the offsets of a group's partitions, as far as its coordinator has them."""
        module = load_payload_module(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, EntityType.request
        )
        asked = module.DescribeShareGroupOffsetsRequestGroup(group_id=GroupId(group), topics=None)
        request = module.DescribeShareGroupOffsetsRequest(groups=(asked,))
        (described,) = (await self._cluster.ask_broker(coordinator, request)).groups
        if described.error_code != ErrorCode.none:
            log.info(
                "offsets of a share group are not known group=%s error=%s",
                group, described.error_code.name,
            )  # fmt: skip
            return {}
        return {
            (str(topic.topic_name), int(entry.partition_index)): _Progress(
                int(entry.start_offset), int(getattr(entry, "lag", -1))
            )
            for topic in described.topics
            for entry in topic.partitions
            if entry.error_code == ErrorCode.none
        }

    def _partitions(
        self,
        group: str,
        progress: Mapping[SharePlace, _Progress],
        windows: Iterable[SharedWindow],
    ) -> Iterable[SharePartitionReport]:
        opened = {(each.place.topic, each.place.partition): each for each in windows}
        for topic, partition in sorted({*progress, *opened}):
            found = progress.get((topic, partition), _Progress(-1, -1))
            window = opened.get((topic, partition))
            is_ordered = self._ordered.rule_of(group, topic) is not None
            leader = window.leader_id if window is not None else None
            if leader is None:
                leader = self._leader_of(topic, partition)
            is_elsewhere = is_ordered and window is None
            yield SharePartitionReport(
                topic=topic,
                partition=partition,
                leader=leader,
                start_offset=found.start_offset if found.start_offset >= 0 else None,
                lag=found.lag if found.lag >= 0 else None,
                is_ordered=is_ordered,
                node=self._node_of(topic, partition, leader) if is_elsewhere else None,
                window=report_window(window) if window is not None else None,
            )

    def _leader_of(self, topic: str, partition: int) -> int | None:
        known = self._cluster.registry.topics.get(topic)
        if known is None:
            return None
        leader_id, _ = self._cluster.leaders.get((known.topic_id, partition), (-1, -1))
        return leader_id if leader_id >= 0 else None

    def _node_of(self, topic: str, partition: int, leader_id: int | None) -> str | None:
        """Return the control port of the other node that clients of a partition are sent to."""
        count = self._cluster.registry.count_of(topic)
        led_by = -1 if leader_id is None else leader_id
        number = self._placement.node_of_partition(topic, partition, count, led_by)
        return self._placement.control_of(number)


def _member(entry: Any) -> ShareMemberReport:
    assigned = entry.assignment.topic_partitions
    return ShareMemberReport(
        member_id=str(entry.member_id),
        client_id=str(entry.client_id),
        host=str(entry.client_host),
        partition_count=sum(len(topic.partitions) for topic in assigned),
    )
