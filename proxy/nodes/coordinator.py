"""Coordinator of the nodes' group: the broker is found, asked, and found anew.

Source: Kafka protocol guide, FindCoordinator v3, JoinGroup v7, SyncGroup v5, Heartbeat v4,
LeaveGroup v4, DescribeGroups v5: all in Kafka 2.5 and later, and in 4.x. Groups of a newer kind by
the name of ours: KIP-848 (consumer), KIP-932 (share), KIP-1071 (streams); a heartbeat with the
epoch -1 ends a member, whatever client sends it.

The connection is its own: a broker answers JoinGroup when every member has joined, and nothing
behind it on that connection before. A request that is given up ends the connection for this reason.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v0.request import ConsumerGroupHeartbeatRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v7.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.leave_group.v4.request import LeaveGroupRequest, MemberIdentity
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest
from kio.schema.streams_group_describe.v0.request import StreamsGroupDescribeRequest
from kio.schema.streams_group_heartbeat.v0.request import StreamsGroupHeartbeatRequest
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.types import GroupId
from kio.static.primitive import i32, i32Timedelta

from keylane.errors import LoginRefused, RightMissing, UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.net.upstream import ServiceLink
from keylane.proxy.topics.node_values import GROUP, PROTOCOL

TRY_SHARE: Final = 0.2
"""Share of the session time-out for one try, so that others fit into a lease."""
JOIN_MARGIN_S: Final = 5.0
"""Time that JoinGroup may take beyond the rebalance time-out; as in Kafka's consumers."""
PROTOCOL_TYPE: Final = "consumer"
"""A protocol type that Kafka's tools know how to show."""
EXPELLED: Final = frozenset({ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id})
MOVED: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
LOADING: Final = frozenset({ErrorCode.coordinator_load_in_progress})
REFUSED: Final = {
    ErrorCode.invalid_group_id: "brokers do not allow its name",
    ErrorCode.invalid_session_timeout: "node_session_timeout_ms is outside of what brokers allow"
    " (group.min.session.timeout.ms, group.max.session.timeout.ms)",
    ErrorCode.group_authorization_failed: "keylane's principal needs READ on it",
    ErrorCode.group_max_size_reached: "it has as many members as brokers allow (group.max.size)",
}
"""Errors that another try does not change; ConfigInvalid at the start."""
GONE: Final = EXPELLED | {ErrorCode.none}
GROUP_ID: Final = GroupId(GROUP)
LEAVES: Final = i32(-1)
STREAMS_LISTS: Final = (
    "active_tasks", "standby_tasks", "warmup_tasks", "client_tags", "task_offsets",
    "task_end_offsets",
)  # fmt: skip
KINDS: Final[tuple[tuple[Any, Any, dict[str, Any]], ...]] = (
    (ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, {"topic_partitions": None}),
    (ShareGroupDescribeRequest, ShareGroupHeartbeatRequest, {}),
    (
        StreamsGroupDescribeRequest,
        StreamsGroupHeartbeatRequest,
        {"endpoint_information_epoch": i32(0), **dict.fromkeys(STREAMS_LISTS)},
    ),
)
"""Requests that list the members of a newer kind, and that end one, with fields that it needs."""


class Coordinator:
    """The coordinator of the nodes' group. Invariant: one request is under way at most."""

    def __init__(
        self, cluster: Cluster, session_timeout_ms: int, *, client_id: str | None = None
    ) -> None:
        """`client_id` is what the coordinator shows of a member in any state of the group."""
        self._cluster, self._client_id = cluster, client_id
        self._session = i32Timedelta.parse(timedelta(milliseconds=session_timeout_ms))
        self.session_s = session_timeout_ms / 1000
        self.try_s = TRY_SHARE * self.session_s
        """Time for one request, but for those that wait for other members."""
        self._link: ServiceLink | None = None
        self._node_id = -1

    @property
    def is_known(self) -> bool:
        """Return whether it can be asked without `find`."""
        return self._link is not None and self._link.is_open

    def drop(self) -> None:
        """Give up what is under way; the next request needs a new `find`."""
        if self._link is not None:
            self._link.close()
        self._link = None

    async def find(self, *, timeout_s: float | None = None) -> None:
        """Connect to the coordinator; a dead broker on the way costs one try.

        Raises: UpstreamLost, LoginRefused, RightMissing.
        """
        timeout_s = timeout_s or self.try_s
        self.drop()
        reasons = []
        # The last coordinator is asked last: it has moved, or does not answer.
        known = sorted(self._cluster.brokers, key=lambda node_id: node_id == self._node_id)
        for node_id in known:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._find_through(node_id)
            except (LoginRefused, RightMissing):
                raise
            except (UpstreamLost, TimeoutError) as error:
                reasons.append(str(error) or f"broker {node_id}: no answer in {timeout_s:g} s")
            else:
                return
        # Every known broker may have moved; the bootstrap addresses remain.
        try:
            async with asyncio.timeout(timeout_s):
                await self._cluster.refresh()
        except TimeoutError:
            reasons.append(f"bootstrap: no answer in {timeout_s:g} s")
        raise UpstreamLost(f"coordinator of group {GROUP}: {'; '.join(reasons)}")

    async def describe(self) -> Any:
        """Return the group as the coordinator has it (DescribeGroups). Raises: UpstreamLost."""
        request = DescribeGroupsRequest(groups=(GROUP_ID,), include_authorized_operations=False)
        return (await self._ask(request)).groups[0]

    async def join(self, member_id: str, metadata: bytes) -> Any:
        """Send JoinGroup, which is answered when each member has joined. Raises: UpstreamLost."""
        protocol = JoinGroupRequestProtocol(name=PROTOCOL, metadata=metadata)
        request = JoinGroupRequest(
            group_id=GROUP_ID,
            session_timeout=self._session,
            rebalance_timeout=self._session,
            member_id=member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=(protocol,),
        )
        return await self._ask(request, self.session_s + JOIN_MARGIN_S)

    async def sync(self, member_id: str, generation_id: int, assignments: dict[str, bytes]) -> Any:
        """Send SyncGroup, which is answered when the leader has sent its. Raises: UpstreamLost."""
        given = [
            SyncGroupRequestAssignment(member_id=to, assignment=assignment)
            for to, assignment in assignments.items()
        ]
        request = SyncGroupRequest(
            group_id=GROUP_ID,
            generation_id=i32(generation_id),
            member_id=member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=tuple(given),
        )
        return await self._ask(request, self.session_s + JOIN_MARGIN_S)

    async def heartbeat(self, member_id: str, generation_id: int) -> Any:
        """Raises: UpstreamLost."""
        request = HeartbeatRequest(
            group_id=GROUP_ID, generation_id=i32(generation_id), member_id=member_id
        )
        return await self._ask(request)

    async def leave(self, *member_ids: str, timeout_s: float | None = None) -> list[ErrorCode]:
        """End memberships in one step; return what was refused. Raises: UpstreamLost.

        A member that the group does not have is no error.
        """
        members = tuple(MemberIdentity(member_id=member_id) for member_id in member_ids)
        request = LeaveGroupRequest(group_id=GROUP_ID, members=members)
        answer = await self._ask(request, timeout_s)
        codes = (answer.error_code, *(member.error_code for member in answer.members))
        return [code for code in codes if code not in GONE]

    async def clear_other_kinds(self) -> int:
        """End members of a group of a newer kind by our name; return how many there were.

        Raises: UpstreamLost.
        """
        gone = 0
        for describe, heartbeat, needed in KINDS:
            known = self._found().version_max
            if known.get(int(describe.__api_key__), -1) < describe.__version__:
                continue
            question = describe(group_ids=(GROUP_ID,), include_authorized_operations=False)
            answer = await self._ask(question)
            for member in (member for group in answer.groups for member in group.members):
                leaving = heartbeat(
                    group_id=GROUP_ID, member_id=member.member_id, member_epoch=LEAVES, **needed
                )
                await self._ask(leaving)
                gone += 1
        return gone

    async def _find_through(self, node_id: int) -> None:
        link: ServiceLink | None = await self._cluster.link_to(node_id)
        assert link is not None
        try:
            found = await link.request(FindCoordinatorRequest(key=GROUP))
            if found.error_code == ErrorCode.group_authorization_failed:
                raise RightMissing(found.error_code.name)
            if found.error_code != 0:
                raise UpstreamLost(f"broker {node_id}: {found.error_code.name}")
            await self._cluster.learn_brokers((found,))
            self._node_id = int(found.node_id)
            if self._node_id == node_id:
                self._link, link = link, None
            else:
                self._link = await self._cluster.link_to(self._node_id)
            if self._client_id is not None:
                self._link.client_id = self._client_id
        finally:
            if link is not None:
                link.close()

    def _found(self) -> ServiceLink:
        if self._link is None:
            raise UpstreamLost(f"coordinator of group {GROUP} is not known")
        return self._link

    async def _ask(self, request: Any, timeout_s: float | None = None) -> Any:
        link = self._found()
        try:
            return await link.request(request, timeout_s=timeout_s or self.try_s)
        except BaseException:  # also when the task that waits for it was cancelled
            self.drop()
            raise
