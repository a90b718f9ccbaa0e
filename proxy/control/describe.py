"""A group on its lanes: members with their lanes, pace and lag.

Source: Kafka's kafka-consumer-groups, which shows the same of partitions (KIP-848).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from keylane.assignor.model import Lane
from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.control.holders import GroupHolding, read_holding
from keylane.proxy.control.progress import ProgressReport, progress_of
from keylane.proxy.control.shares.describe import ShareDescriber
from keylane.proxy.control.shares.report import ShareReport
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_groups import ConsumerGroups
from keylane.proxy.groups.group_plans import Generations, Planned, identity_of
from keylane.proxy.scans.lag import LaneTallies
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.view import View

KEY_RANGE: Final = "key-range"
DEAD: Final = "Dead"
"""State of groups that brokers do not know."""
NO_OFFSET: Final = -1
Misplaced = Callable[[uuid.UUID], Mapping[int, int]]
"""Gives the offset of the first record in another partition than its key's, by partition."""
LANES_AT_ONCE: Final = 256
"""Lanes that are looked at, some 5 ms, before others are served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneName:
    """A lane as clients name it."""

    topic: str
    lane_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneReport:
    """One lane of the group."""

    topic: str
    lane_index: int
    partition: int
    key_range: tuple[int, int]
    """Inclusive bounds in the hash space."""
    member_id: str | None
    committed: int | None
    """Place where a member that takes the lane over starts; None: nothing was ever committed."""
    committed_ms: int | None
    """Time when a member last committed the lane, in ms since 1970; None: not since this start."""
    log_end: int
    lag: int | None
    """Records of the lane from `committed` to the log end; None without a commit."""
    lag_is_exact: bool
    """False: `lag` is an estimate, or there is none."""
    offset_lag: int | None
    """Offsets from `committed` to the log end, those of other lanes too: what Kafka calls lag."""
    bytes_per_s: float | None
    records_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """One member of the group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    lane_count: int
    bytes_per_s: float
    lag: int
    """Records of its lanes that have a commit."""
    lanes_gained: tuple[LaneName, ...] | None
    """Of one generation to the next; None: this node did not deal out the group's lanes."""
    lanes_lost: tuple[LaneName, ...] | None
    bypasses_keylane: bool = False
    """It connects to brokers directly, and has partitions; its lanes are all lanes of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """A lane that was planned for another member, without a rebalance."""

    at_ms: int
    """Time in ms since 1970."""
    topic: str
    lane_index: int
    from_member: str
    to_member: str
    reason: str
    """`join`, `leave`, `load`, `subscription`, `topics`, `bypass` or `restart`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MisplacedReport:
    """The first record of a partition that Kafka's default partitioner puts into another one."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """A group and its lanes."""

    group: str
    state: str
    """Kafka's name of it, such as Stable, Empty, PreparingRebalance."""
    assignor: str
    coordinator: int
    generation_id: int | None
    """The last generation that this node dealt out, if it did; of the consumer protocol, and of a
    share group, the epoch of the group."""
    refusal: str | None = None
    """The reason why keylane refuses the group's last plan, of Kafka Streams; None: it does not."""
    members: tuple[MemberReport, ...]
    lanes: tuple[LaneReport, ...]
    moves: tuple[MoveReport, ...] = ()
    """The last moves of lanes of a group of the consumer protocol, the newest first."""
    progress: tuple[ProgressReport, ...] = ()
    """Stable offsets, and ranges of offsets that are done above them, of all its partitions."""
    misplaced: tuple[MisplacedReport, ...] = ()
    """Of its topics by murmur2, as far as readers of this node have met such records."""
    share: ShareReport | None = None
    """Members and partitions of a share group, which has no lanes; None: it is none."""


async def ask_group(cluster: Cluster, group: str, request: Any) -> tuple[int, Any]:
    """Return a group's coordinator, and its description of the group. Raises: UpstreamLost."""
    coordinator = await cluster.coordinator_of(group)
    answer = await cluster.ask_broker(coordinator, request)
    described = answer.groups[0]
    if described.error_code not in (ErrorCode.none, ErrorCode.group_id_not_found):
        raise UpstreamLost(f"group {group}: {described.error_code.name}")
    return coordinator, described


class _Entry(NamedTuple):
    """A member, in the words of DescribeGroups."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str

    @classmethod
    def of(cls, member: Any) -> _Entry:
        """Make it of a kio entry of ConsumerGroupDescribe."""
        return cls(
            str(member.member_id), member.instance_id, str(member.client_id),
            str(member.client_host),
        )  # fmt: skip


Holders = tuple[Mapping[Lane, str], Sequence[Any]]
"""Member ids by lane, and the members with their `member_id`, `client_id` and `client_host`."""


class LaneMeasures(NamedTuple):
    """Parts that know how fast lanes are, and how far behind."""

    loads: LaneLoads
    tallies: LaneTallies
    misplaced: Misplaced


class GroupDescriber:
    """Puts together what Kafka, the offset states and the readers know of a group."""

    def __init__(
        self,
        cluster: Cluster,
        groups: GroupOffsets,
        measures: LaneMeasures,
        generations: Generations,
        consumer_groups: ConsumerGroups,
        shares: ShareDescriber,
    ) -> None:
        self._cluster, self._groups = cluster, groups
        self._loads, self._tallies, self._misplaced = measures
        self._generations, self._consumer_groups = generations, consumer_groups
        self.shares = shares
        """Describes share groups."""

    async def holders(self, group: str) -> Holders:
        """Return what members of a group hold now, and the members. Raises: UpstreamLost."""
        served, group_id = self._consumer_groups.find(group), GroupId(group)
        if served is not None and served.members:
            asked = ConsumerGroupDescribeRequest(
                group_ids=(group_id,), include_authorized_operations=False
            )
            _, described = await ask_group(self._cluster, group, asked)
            return _given(served), [_Entry.of(member) for member in described.members]
        request = DescribeGroupsRequest(groups=(group_id,), include_authorized_operations=False)
        _, described = await ask_group(self._cluster, group, request)
        return self._holding(group, described).owners, described.members

    async def describe(self, group: str) -> GroupReport | None:
        """Ask and put together; None: there is no such group.

        Raises: UpstreamLost; NotCoordinator, when another node serves the group.
        """
        served = self._consumer_groups.find(group)
        if served is not None and served.members:
            return await self._describe_served(group, served)
        if self.shares.is_open(group):
            return await self._describe_shares(group)
        request = DescribeGroupsRequest(
            groups=(GroupId(group),), include_authorized_operations=False
        )
        coordinator, described = await ask_group(self._cluster, group, request)
        if described.group_state == DEAD:
            return await self._describe_shares(group)  # brokers describe those apart
        await self._groups.ready(group)
        owners, direct = self._holding(group, described)
        views = await self._views(group, owners)
        lanes = [lane for view in views for lane in await self._lanes(group, view, owners)]
        planned = self._generations.planned(group)
        return GroupReport(
            group=group,
            state=str(described.group_state),
            assignor=str(described.protocol_data),
            coordinator=coordinator,
            generation_id=planned.generation_id if planned is not None else None,
            refusal=self._generations.streams.refusal_of(group),
            members=_members(described.members, lanes, planned, direct),
            lanes=tuple(lanes),
            progress=progress_of(self._groups.states_of(group).items()),
            misplaced=tuple(
                entry for view in views for entry in misplaced_of(view, self._misplaced)
            ),
        )

    async def _describe_served(self, group: str, served: ConsumerGroup) -> GroupReport | None:
        """Do as `describe` for a group of the consumer protocol, whose lanes keylane gives."""
        request = ConsumerGroupDescribeRequest(
            group_ids=(GroupId(group),), include_authorized_operations=False
        )
        coordinator, described = await ask_group(self._cluster, group, request)
        if described.error_code != ErrorCode.none:
            return None
        await self._groups.ready(group)
        owners = _given(served)
        names = {name: one.member_id for name, one in served.members.items()}
        views = await self._views(group, owners)
        lanes = [lane for view in views for lane in await self._lanes(group, view, owners)]
        moves = [
            MoveReport(
                at_ms=move.at_ms,
                topic=move.lane[0],
                lane_index=move.lane[1],
                from_member=names.get(move.giver, move.giver),
                to_member=names.get(move.receiver, move.receiver),
                reason=move.reason,
            )
            for move in reversed(served.moves)
        ]
        entries = [_Entry.of(member) for member in described.members]
        known = {one.member_id for one in served.members.values()}
        foreign = {one.member_id for one in entries} - known
        return GroupReport(
            group=group,
            state=str(described.group_state),
            assignor=KEY_RANGE,
            coordinator=coordinator,
            generation_id=served.epoch,
            members=_members(entries, lanes, None, foreign),
            lanes=tuple(lanes),
            moves=tuple(moves),
            progress=progress_of(self._groups.states_of(group).items()),
            misplaced=tuple(
                entry for view in views for entry in misplaced_of(view, self._misplaced)
            ),
        )

    async def _describe_shares(self, group: str) -> GroupReport | None:
        """Do as `describe` for a group that may be a share group."""
        described = await self.shares.describe(group)
        if described is None:
            return None
        return GroupReport(
            group=group,
            state=described.state,
            assignor=described.assignor,
            coordinator=described.coordinator,
            generation_id=described.epoch,
            members=(),
            lanes=(),
            share=described.report,
        )

    def _holding(self, group: str, described: Any) -> GroupHolding:
        held = self._generations.held(group)
        return read_holding(described, held, self._cluster.registry)

    async def _views(self, group: str, owners: Mapping[Lane, str]) -> list[View]:
        """Views that members hold lanes of, or that the group has offsets on."""
        registry = self._cluster.registry
        names = {topic for topic, _ in owners} | set(self._groups.topics_of(group))
        names |= set(self._groups.lane_names_of(group))
        views = (registry.view(name) for name in sorted(names) if not registry.is_refused(name))
        return [view for view in views if view is not None]

    async def _lanes(self, group: str, view: View, owners: Mapping[Lane, str]) -> list[LaneReport]:
        ends = []
        for partition in range(view.layout.partition_count):
            end = await self._groups.log_end(view, partition)
            # Blocks that were scanned since the broker was asked count as well.
            ends.append(max(end, self._tallies.scanned_end(view, partition)))
        bytes_per_s, records_per_s = self._loads.bytes_per_s(view), self._loads.records_per_s(view)
        times, topic = self._groups.commit_times, (view.topic_id, view.name)
        reports = []
        for index in range(view.layout.index_count):
            if index % LANES_AT_ONCE == 0:
                await asyncio.sleep(0)  # clients are served between so many lanes
            partition = view.partition_of(index)
            (key_range,) = view.key_ranges(index)
            state = self._groups.state_of(group, view, partition)
            offset = state.position_of(key_range).offset if state is not None else NO_OFFSET
            committed = None if offset == NO_OFFSET else offset
            left = None
            if committed is not None:
                left = self._tallies.remaining(view, index, committed, ends[partition])
            reports.append(
                LaneReport(
                    topic=view.name,
                    lane_index=index,
                    partition=partition,
                    key_range=(key_range.lo, key_range.hi),
                    member_id=owners.get((view.name, index)),
                    committed=committed,
                    committed_ms=times.last_ms(group, topic, index),
                    log_end=ends[partition],
                    lag=left.count if left is not None else None,
                    lag_is_exact=left is not None and left.is_exact,
                    offset_lag=None if committed is None else max(0, ends[partition] - committed),
                    bytes_per_s=bytes_per_s.get(index),
                    records_per_s=records_per_s.get(index),
                )
            )
        return reports


def _given(served: ConsumerGroup) -> dict[Lane, str]:
    return {lane: one.member_id for one in served.members.values() for lane in one.given}


def misplaced_of(view: View, misplaced: Misplaced) -> tuple[MisplacedReport, ...]:
    """Return the first misplaced records of the view's topic, by partition."""
    found = misplaced(view.topic_id).items()
    return tuple(MisplacedReport(topic=view.topic, partition=p, offset=at) for p, at in found)


def _members(
    entries: Iterable[Any],
    lanes: Iterable[LaneReport],
    planned: Planned | None,
    direct: Collection[str],
) -> tuple[MemberReport, ...]:
    owned: dict[str, list[LaneReport]] = {}
    for lane in lanes:
        if lane.member_id is not None:
            owned.setdefault(lane.member_id, []).append(lane)
    return tuple(
        replace(
            _member(entry, owned.get(str(entry.member_id), ()), planned),
            bypasses_keylane=str(entry.member_id) in direct,
        )
        for entry in entries
    )


def _member(entry: Any, own: Collection[LaneReport], planned: Planned | None) -> MemberReport:
    member_id, instance_id = str(entry.member_id), entry.group_instance_id
    gained = lost = None
    identity = identity_of(member_id, instance_id)
    if planned is not None and identity in planned.lanes:
        gained, lost = _names(planned.gained.get(identity)), _names(planned.lost.get(identity))
    return MemberReport(
        member_id=member_id,
        instance_id=instance_id,
        client_id=str(entry.client_id),
        host=str(entry.client_host),
        lane_count=len(own),
        bytes_per_s=sum(lane.bytes_per_s or 0.0 for lane in own),
        lag=sum(lane.lag or 0 for lane in own),
        lanes_gained=gained,
        lanes_lost=lost,
    )


def _names(lanes: Iterable[Lane] | None) -> tuple[LaneName, ...]:
    return tuple(LaneName(topic=topic, lane_index=index) for topic, index in sorted(lanes or ()))
