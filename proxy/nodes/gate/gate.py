"""Keeps what does not prove to be a node out of the nodes' group; `strangers` has the rules.

Source: KIP-345 (LeaveGroup of other members); docs/decisions/033.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.bounded import BoundedDict
from keylane.errors import ConfigInvalid, UpstreamLost
from keylane.proxy.nodes.coordinator import PROTOCOL_TYPE, Coordinator
from keylane.proxy.nodes.gate.seals import Seals
from keylane.proxy.nodes.gate.strangers import EXPELLED_MAX, PAUSE_S_MIN, Strangers
from keylane.proxy.nodes.gate.verdicts import Received, receive
from keylane.proxy.nodes.predecessor import STABLE
from keylane.proxy.runtime.log_pace import LogPace
from keylane.proxy.topics.node_values import GROUP, PROTOCOL

log = logging.getLogger("keylane.nodes")

STALL_MARGIN_S: Final = 1.0
"""On top of a session: a coordinator that waits for longer waits for no node."""
STALL_TURN_S: Final = 2.0
"""On top for a node that does not know the others: the one that led them has the first turn."""
PREPARING: Final = "PreparingRebalance"
"""State of a group in which a JoinGroup waits for others."""
LOGGED_MAX: Final = 20
"""Lines in `LOG_WINDOW_S`; a member that comes back has another id each time."""
LOG_WINDOW_S: Final = 60.0
AT_ONCE_MAX: Final = 1_000
REMEDY: Final = (
    "kafka-acls --add --deny-principal User:NAME --operation Read --operation Delete "
    f"--group {GROUP}"
)
"""The cure that keeps a stranger out for good: brokers refuse it before it is a member."""


class Gate:
    """A member's measures against strangers in the nodes' group."""

    def __init__(
        self,
        coordinator: Coordinator,
        seals: Seals,
        clock: Callable[[], float],
        on_stranger: Callable[[], None],
    ) -> None:
        """`on_stranger` is called once for each member."""
        self._coordinator, self._seals = coordinator, seals
        self._clock, self._on_stranger = clock, on_stranger
        self._strangers = Strangers(coordinator.session_s)
        self._logged: BoundedDict[str, None] = BoundedDict(AT_ONCE_MAX)
        self._pace = LogPace(lines_max=LOGGED_MAX, interval_s=LOG_WINDOW_S)
        self._verified: frozenset[str] = frozenset()
        """Members that were nodes in the last generation that we led."""

    # Before we join.
    async def look(self, described: Any) -> Received:
        """Return the members; put out what cannot be a node. Raises: UpstreamLost."""
        # One that signs is there all the same, where we cannot: its number is taken.
        received = self._receive(described, mutual=False)
        self._strangers.see(received.strangers)
        if any(self._receive(described, mutual=True).strangers.values()):
            self._strangers.be_beside(self._clock())  # also if it is put out before we join
        await self._put_out(described, received.reasons, is_established=False, contact_s=None)
        return received

    async def clear(self) -> None:
        """Put every member out: the coordinator says that none speaks the protocol of nodes.

        A node has no other protocol, so none of them is one. The next JoinGroup, after they are
        gone or after a pause, shows if that has changed. Raises: UpstreamLost, ConfigInvalid.
        """
        if pause_s := self._strangers.pause_s(self._clock()):
            await asyncio.sleep(pause_s)
            return
        asked_s = self._clock()
        described = await self._coordinator.describe()
        if self._is_of_nodes(described) or not self._is_fresh(asked_s):
            await asyncio.sleep(PAUSE_S_MIN)
            return
        members = [str(member.member_id) for member in described.members]
        self._report(members, described, {})
        gone = await self._end(members, self._coordinator)
        gone += await self._coordinator.clear_other_kinds()
        self._strangers.note_put_out(self._clock())
        if not gone:
            # The group's kind shows no members, or they have left: the next JoinGroup may pass.
            await asyncio.sleep(self._coordinator.try_s)

    async def clear_stall(self, watch: Coordinator, member_id: str) -> None:
        """Put out what a JoinGroup of ours waits for, when it waits for longer than a session.

        No member of a group that has been rebalancing for a session holds a lease: the coordinator
        answers no request well meanwhile. So nodes among them lose nothing but their place.
        """
        turn_s = 0.0 if self._verified else STALL_TURN_S
        await asyncio.sleep(self._coordinator.session_s + STALL_MARGIN_S + turn_s)
        try:
            if not watch.is_known:
                await watch.find()
            asked_s = self._clock()
            described = await watch.describe()
            members = {str(member.member_id) for member in described.members}
            if described.group_state != PREPARING or member_id not in members:
                return
            if not self._is_fresh(asked_s):
                return
            members -= {member_id, *self._verified}
            log.warning(
                "members hold up the nodes for longer than a session, and are put out members=%d",
                len(members),
            )
            self._strangers.be_beside(self._clock())
            await self._end(members, watch)
        except UpstreamLost as error:
            log.debug("members that hold up the nodes stay reason=%s", error)

    # While we are a member.
    def lead(self, said: Mapping[str, bytes]) -> Received:
        """Lead a generation; `said` is what its members said."""
        received = receive(said, self._seals)
        self._verified = frozenset(received.hellos)
        self._strangers.join(received.strangers, self._clock(), is_leader=True)
        return received

    def follow(self, leader: str, *, is_node: bool) -> None:
        """Join a generation that another one leads, which proved to be a node or did not."""
        self._verified = frozenset()
        strangers = {} if is_node else {leader: True}
        self._strangers.join(strangers, self._clock(), is_leader=False)

    def agree(self) -> None:
        """Record that this node is one of the nodes, and has what it was given."""
        self._strangers.agree()

    @property
    def guard_s(self) -> float:
        """Seconds for which this node has to be counted as a member yet (`strangers`)."""
        return self._strangers.guard_s(self._clock())

    def leave(self) -> None:
        """Record that this node is no member any more."""
        self._verified = frozenset()
        self._strangers.leave()

    def withholds(self, *, is_established: bool) -> bool:
        """Return whether a leader must give nothing away yet."""
        return self._strangers.withholds(self._clock(), is_established=is_established)

    async def tend(self, member_id: str, *, is_established: bool, contact_s: float) -> None:
        """Put out members that are due, between two heartbeats. Raises: UpstreamLost.

        member_id: ours; contact_s: when our last heartbeat that was answered well was sent.
        """
        known = self._strangers.known
        if not known or self._strangers.pause_s(self._clock()):
            return
        described = await self._coordinator.describe()
        if described.error_code != ErrorCode.none or described.group_state != STABLE:
            return
        if member_id not in {str(member.member_id) for member in described.members}:
            return  # of a generation without us; its leader may serve
        received = self._receive(described, mutual=True)
        self._strangers.see(received.strangers)
        await self._put_out(
            described, received.reasons, is_established=is_established, contact_s=contact_s
        )

    def note_expelled(self) -> None:
        """Record that this node was put out. Raises: ConfigInvalid (our secret must be wrong)."""
        if self._strangers.note_expelled():
            raise ConfigInvalid(
                f"node_secret_file: this node was put out of the group {GROUP} "
                f"{EXPELLED_MAX} times by members that it cannot verify; give all nodes the same "
                f"secrets (if these members are no nodes: {REMEDY})"
            )

    def _is_of_nodes(self, described: Any) -> bool:
        """Return whether every member speaks our protocol, so that we can join."""
        return bool(
            described.group_state == STABLE
            and described.protocol_type == PROTOCOL_TYPE
            and described.protocol_data == PROTOCOL
        )

    def _is_fresh(self, asked_s: float) -> bool:
        """Return whether this process did not stop meanwhile: others may be members by now."""
        return self._clock() <= asked_s + self._coordinator.try_s

    def _receive(self, described: Any, *, mutual: bool) -> Received:
        if described.error_code != ErrorCode.none or described.group_state != STABLE:
            return Received({}, {}, {})
        said = {str(each.member_id): bytes(each.member_metadata) for each in described.members}
        if str(described.protocol_data) not in {"", PROTOCOL}:
            return Received({}, dict.fromkeys(said, False), {})
        return receive(said, self._seals, mutual=mutual)

    async def _put_out(
        self,
        described: Any,
        reasons: Mapping[str, str],
        *,
        is_established: bool,
        contact_s: float | None,
    ) -> None:
        now_s = self._clock()
        self._report(self._strangers.known, described, reasons)
        due = self._strangers.due(now_s, is_established=is_established, contact_s=contact_s)
        if due:
            self._strangers.expect_leases(due, now_s, is_established=is_established)
            await self._end(due, self._coordinator)
            self._strangers.note_put_out(now_s)

    async def _end(self, member_ids: Iterable[str], coordinator: Coordinator) -> int:
        """End these memberships; return how many there were. Raises: UpstreamLost."""
        # In one request: those that are left would have time to take over what the others had.
        going = list(member_ids)[:AT_ONCE_MAX]
        if not going:
            return 0
        if refused := await coordinator.leave(*going):
            raise UpstreamLost(f"group {GROUP}: LeaveGroup: {refused[0].name}")
        log.info("strangers were put out group=%s members=%d", GROUP, len(going))
        return len(going)

    def _report(self, strangers: Iterable[str], described: Any, reasons: Mapping[str, str]) -> None:
        """Log and count members that are seen for the first time."""
        members = {str(member.member_id): member for member in described.members}
        for member_id in strangers:
            if member_id in self._logged:
                continue
            self._logged[member_id] = None
            self._on_stranger()
            left_out = self._pace.let(self._clock())
            if left_out is None:
                continue
            if left_out:
                log.warning("more strangers were put out without a line members=%d", left_out)
            member = members.get(member_id)
            log.warning(
                "member of the nodes' group is no node, ignored and put out member_id=%s "
                "client_id=%s host=%s reason=%s remedy=%s",
                member_id, getattr(member, "client_id", "?"), getattr(member, "client_host", "?"),
                reasons.get(member_id, f"it does not speak {PROTOCOL}"), REMEDY,
            )  # fmt: skip
