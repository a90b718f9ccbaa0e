"""The broker that coordinates the nodes' group: found, asked, and found anew.

Source: Kafka protocol guide, FindCoordinator v3, JoinGroup v7, SyncGroup v5, Heartbeat v4,
LeaveGroup v4, DescribeGroups v5: all in Kafka 2.5 and later, and in 4.x.

The connection is its own: JoinGroup is answered when all have joined, and a broker answers nothing
behind it on that connection. A request that is given up ends it, for the same reason.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v7.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.leave_group.v4.request import LeaveGroupRequest, MemberIdentity
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.types import GroupId
from kio.static.primitive import i32, i32Timedelta

from keylane.errors import LoginRefused, RightMissing, UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.net.upstream import ServiceLink
from keylane.proxy.nodes.other_protocols import KINDS, leaving, question

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


class Coordinator:
    """The coordinator of one group. Invariant: one request is under way at most."""

    def __init__(
        self, cluster: Cluster, group: str, protocol: str, *, client_id: str | None = None
    ) -> None:
        """`client_id` is what the coordinator shows of a member in any state of the group."""
        self._cluster, self._group, self._protocol = cluster, GroupId(group), protocol
        self.group = group
        self._client_id = client_id
        self._link: ServiceLink | None = None
        self._node_id = -1

    @property
    def is_known(self) -> bool:
        """Return whether it can be asked at once."""
        return self._link is not None and self._link.is_open

    def drop(self) -> None:
        """Ask somebody else from now on; what is under way is given up."""
        if self._link is not None:
            self._link.close()
        self._link = None

    async def find(self, *, timeout_s: float) -> None:
        """Connect to the coordinator; a dead broker on the way costs `timeout_s`.

        Raises: UpstreamLost, LoginRefused, RightMissing.
        """
        self.drop()
        reasons = []
        # The one that was the coordinator is asked last: it is why we look.
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
        # All that are known may have moved: the bootstrap addresses remain.
        try:
            async with asyncio.timeout(timeout_s):
                await self._cluster.refresh()
        except TimeoutError:
            reasons.append(f"bootstrap: no answer in {timeout_s:g} s")
        raise UpstreamLost(f"coordinator of group {self._group}: {'; '.join(reasons)}")

    async def describe(self, *, timeout_s: float) -> Any:
        """The group as the coordinator has it (DescribeGroups). Raises: UpstreamLost."""
        request = DescribeGroupsRequest(groups=(self._group,), include_authorized_operations=False)
        answer = await self._ask(request, timeout_s)
        return answer.groups[0]

    async def join(
        self, member_id: str, metadata: bytes, *, session_timeout_ms: int, timeout_s: float
    ) -> Any:
        """JoinGroup, answered when all members have joined. Raises: UpstreamLost."""
        session = i32Timedelta.parse(timedelta(milliseconds=session_timeout_ms))
        protocol = JoinGroupRequestProtocol(name=self._protocol, metadata=metadata)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout=session,
            rebalance_timeout=session,
            member_id=member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=(protocol,),
        )
        return await self._ask(request, timeout_s)

    async def sync(
        self,
        member_id: str,
        generation_id: int,
        assignments: dict[str, bytes],
        *,
        timeout_s: float,
    ) -> Any:
        """SyncGroup, answered when the leader has sent its own. Raises: UpstreamLost."""
        given = [
            SyncGroupRequestAssignment(member_id=to, assignment=assignment)
            for to, assignment in assignments.items()
        ]
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=i32(generation_id),
            member_id=member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=tuple(given),
        )
        return await self._ask(request, timeout_s)

    async def heartbeat(self, member_id: str, generation_id: int, *, timeout_s: float) -> Any:
        """Raises: UpstreamLost."""
        request = HeartbeatRequest(
            group_id=self._group, generation_id=i32(generation_id), member_id=member_id
        )
        return await self._ask(request, timeout_s)

    async def leave(self, *member_ids: str, timeout_s: float) -> list[ErrorCode]:
        """End memberships, all in one step; what was refused. Raises: UpstreamLost.

        A member that is none is no error: that is what was wanted.
        """
        members = tuple(MemberIdentity(member_id=member_id) for member_id in member_ids)
        request = LeaveGroupRequest(group_id=self._group, members=members)
        answer = await self._ask(request, timeout_s)
        codes = (answer.error_code, *(member.error_code for member in answer.members))
        return [code for code in codes if code not in GONE]

    async def clear_other_kinds(self, *, timeout_s: float) -> int:
        """End members of a group of a newer kind by our name; how many. Raises: UpstreamLost."""
        gone = 0
        for describe, heartbeat in KINDS:
            if self._link is None:
                raise UpstreamLost(f"coordinator of group {self._group} is not known")
            known = self._link.version_max
            if known.get(int(describe.__api_key__), -1) < describe.__version__:
                continue
            answer = await self._ask(question(describe, self.group), timeout_s)
            members = [str(member.member_id) for group in answer.groups for member in group.members]
            for member_id in members:
                await self._ask(leaving(heartbeat, self.group, member_id), timeout_s)
            gone += len(members)
        return gone

    async def _find_through(self, node_id: int) -> None:
        link: ServiceLink | None = await self._cluster.link_to(node_id)
        assert link is not None
        try:
            request = FindCoordinatorRequest(key=str(self._group))
            found = await link.request(int(request.__api_key__), request)
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

    async def _ask(self, request: Any, timeout_s: float) -> Any:
        if self._link is None:
            raise UpstreamLost(f"coordinator of group {self._group} is not known")
        try:
            return await self._link.request(int(request.__api_key__), request, timeout_s=timeout_s)
        except BaseException:  # also when the task that waits for it was cancelled
            self.drop()
            raise
