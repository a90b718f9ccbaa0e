"""A group on its lanes: members with their lanes, pace and lag.

Source: Kafka's kafka-consumer-groups, which shows the same of partitions (KIP-848).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from keylane.assignor.model import Lane
from keylane.config.node import GroupRule
from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.control.figures import BalanceReport, balance_report, figures_of
from keylane.proxy.control.holders import CONSUMER, GroupHolding, read_holding
from keylane.proxy.control.lane_reports import (
    LaneDescriber,
    LaneMeasures,
    LaneReport,
    Misplaced,
)
from keylane.proxy.control.progress import ProgressReport, progress_of
from keylane.proxy.control.shares.describe import ShareDescriber
from keylane.proxy.control.shares.report import ShareReport
from keylane.proxy.groups.assignors import is_replaced
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_groups import ConsumerGroups
from keylane.proxy.groups.group_plans import Generations, Planned, identity_of
from keylane.proxy.topics.view import View
from keylane.wire.header import ApiKey

KEY_RANGE: Final = "key-range"
DEAD: Final = "Dead"
"""State of groups that brokers do not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneName:
    """A lane as clients name it."""

    topic: str
    lane_index: int


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
    lag_is_exact: bool = False
    lag_s: float | None = None
    """Of its lane that is furthest behind."""
    lag_s_is_exact: bool = False
    records_per_s: float = 0.0
    consumed_per_s: float | None = None
    last_commit_ms: int | None = None
    is_stuck: bool = False
    """Records wait for it, and none of its lanes has moved on for a minute."""
    stuck_s: float | None = None


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
    client_assignor: str = ""
    """The assignor that the group's clients have agreed on."""
    balance: BalanceReport | None = None
    """None: it has no members, or the load is not known."""
    lag: int | None = None
    """Records of lanes that have a commit; None: it has no lanes, or none with a commit."""
    lag_is_exact: bool = False
    lag_s: float | None = None
    lag_s_is_exact: bool = False
    bytes_per_s: float | None = None
    records_per_s: float | None = None
    consumed_per_s: float | None = None
    last_commit_ms: int | None = None


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
        *,
        rule_of: Callable[[str], GroupRule | None] = lambda _: None,
    ) -> None:
        """rule_of: gives the rule for a group's assignor."""
        self._cluster, self._groups = cluster, groups
        self._lanes, self._misplaced = LaneDescriber(groups, measures), measures.misplaced
        self._progress = measures.progress
        self._generations, self._consumer_groups = generations, consumer_groups
        self._rule_of = rule_of
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
        if described.group_state == DEAD:  # brokers describe those of newer protocols apart
            return await self._describe_served(group, None) or await self._describe_shares(group)
        await self._groups.ready(group)
        owners, direct = self._holding(group, described)
        views, lanes = await self._views_and_lanes(group, owners)
        planned = self._generations.planned(group)
        refusal, client_assignor = (
            self._generations.streams.refusal_of(group), str(described.protocol_data),
        )  # fmt: skip
        is_ours = (
            bool(lanes)
            and refusal is None
            and described.protocol_type == CONSUMER
            and is_replaced(client_assignor, self._rule_of(group))
        )
        report = GroupReport(
            group=group,
            state=str(described.group_state),
            assignor=KEY_RANGE if is_ours else client_assignor,
            coordinator=coordinator,
            generation_id=planned.generation_id if planned is not None else None,
            refusal=refusal,
            members=self._members(group, described.members, lanes, planned, direct),
            lanes=lanes,
            progress=progress_of(self._groups.states_of(group).items()),
            misplaced=self._find_misplaced(views),
            client_assignor=client_assignor,
        )
        return _with_figures(report, is_by_keylane=is_ours)

    async def _describe_served(
        self, group: str, served: ConsumerGroup | None
    ) -> GroupReport | None:
        """Do as `describe` for a group of the consumer protocol, whose lanes keylane gives."""
        request = ConsumerGroupDescribeRequest(
            group_ids=(GroupId(group),), include_authorized_operations=False
        )
        if served is None and not await self._has_consumer_groups(group):
            return None
        coordinator, described = await ask_group(self._cluster, group, request)
        if described.error_code != ErrorCode.none:
            return None
        await self._groups.ready(group)
        known = {} if served is None else served.members
        owners = {} if served is None else _given(served)
        views, lanes = await self._views_and_lanes(group, owners)
        entries = [_Entry.of(member) for member in described.members]
        ids = {one.member_id for one in known.values()}
        foreign = {one.member_id for one in entries} - ids if lanes else set()
        client_assignor = str(described.assignor_name)
        report = GroupReport(
            group=group,
            state=str(described.group_state),
            assignor=KEY_RANGE if lanes else client_assignor,
            coordinator=coordinator,
            generation_id=int(described.group_epoch) if served is None else served.epoch,
            members=self._members(group, entries, lanes, None, foreign),
            lanes=lanes,
            moves=() if served is None else _moves(served),
            progress=progress_of(self._groups.states_of(group).items()),
            misplaced=self._find_misplaced(views),
            client_assignor=client_assignor,
        )
        return _with_figures(report, is_by_keylane=bool(lanes))

    async def _has_consumer_groups(self, group: str) -> bool:
        """Return whether the group's coordinator knows KIP-848. Raises: UpstreamLost."""
        coordinator = await self._cluster.coordinator_of(group)
        versions = await self._cluster.versions_of(coordinator)
        return ApiKey.CONSUMER_GROUP_DESCRIBE in versions

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

    async def _views_and_lanes(
        self, group: str, owners: Mapping[Lane, str]
    ) -> tuple[list[View], tuple[LaneReport, ...]]:
        """Views that members hold lanes of, or that the group has offsets on, and their lanes."""
        registry = self._cluster.registry
        names = {topic for topic, _ in owners} | set(self._groups.topics_of(group))
        names |= set(self._groups.lane_names_of(group))
        found = (registry.view(name) for name in sorted(names) if not registry.is_refused(name))
        views = [view for view in found if view is not None]
        lanes = [lane for view in views for lane in await self._lanes.describe(group, view, owners)]
        return views, tuple(lanes)

    def _find_misplaced(self, views: Iterable[View]) -> tuple[MisplacedReport, ...]:
        return tuple(entry for view in views for entry in misplaced_of(view, self._misplaced))

    def _members(
        self,
        group: str,
        entries: Iterable[Any],
        lanes: Iterable[LaneReport],
        planned: Planned | None,
        direct: Collection[str],
    ) -> tuple[MemberReport, ...]:
        progress = self._progress.of(group)
        stuck = progress.stuck(time.monotonic())
        owned: dict[str, list[LaneReport]] = {}
        for lane in lanes:
            if lane.member_id is None:
                continue
            owned.setdefault(lane.member_id, []).append(lane)
            # The last sample may be minutes old where a node has many groups.
            if lane.member_id in stuck and progress.has_moved(lane):
                del stuck[lane.member_id]
        return tuple(
            replace(
                _member(entry, owned.get(str(entry.member_id), ()), planned),
                bypasses_keylane=str(entry.member_id) in direct,
                is_stuck=str(entry.member_id) in stuck,
                stuck_s=stuck.get(str(entry.member_id)),
            )
            for entry in entries
        )


def _moves(served: ConsumerGroup) -> tuple[MoveReport, ...]:
    names = {name: one.member_id for name, one in served.members.items()}
    return tuple(
        MoveReport(
            at_ms=move.at_ms,
            topic=move.lane[0],
            lane_index=move.lane[1],
            from_member=names.get(move.giver, move.giver),
            to_member=names.get(move.receiver, move.receiver),
            reason=move.reason,
        )
        for move in reversed(served.moves)
    )


def _with_figures(report: GroupReport, *, is_by_keylane: bool) -> GroupReport:
    """Return the report with the figures of its lanes, if it has any."""
    if not report.lanes:
        return report
    loads = [member.bytes_per_s for member in report.members]
    return replace(
        report,
        balance=balance_report(loads, is_by_keylane=is_by_keylane),
        **asdict(figures_of(report.lanes)),
    )


def _given(served: ConsumerGroup) -> dict[Lane, str]:
    return {lane: one.member_id for one in served.members.values() for lane in one.given}


def misplaced_of(view: View, misplaced: Misplaced) -> tuple[MisplacedReport, ...]:
    """Return the first misplaced records of the view's topic, by partition."""
    found = misplaced(view.topic_id).items()
    return tuple(MisplacedReport(topic=view.topic, partition=p, offset=at) for p, at in found)


def _member(entry: Any, own: Collection[LaneReport], planned: Planned | None) -> MemberReport:
    member_id, instance_id = str(entry.member_id), entry.group_instance_id
    gained = lost = None
    identity = identity_of(member_id, instance_id)
    if planned is not None and identity in planned.lanes:
        gained, lost = _names(planned.gained.get(identity)), _names(planned.lost.get(identity))
    figures = asdict(figures_of(own))
    return MemberReport(
        member_id=member_id,
        instance_id=instance_id,
        client_id=str(entry.client_id),
        host=str(entry.client_host),
        lane_count=len(own),
        lanes_gained=gained,
        lanes_lost=lost,
        **{**figures, "lag": figures["lag"] or 0},
    )


def _names(lanes: Iterable[Lane] | None) -> tuple[LaneName, ...]:
    return tuple(LaneName(topic=topic, lane_index=index) for topic, index in sorted(lanes or ()))
