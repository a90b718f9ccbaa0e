"""Keeps what does not prove to be a node out of the nodes' group.

Source: docs/decisions/033; `strangers` has the rules, `evictions` does it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import ConfigInvalid, UpstreamLost
from keylane.proxy.nodes.coordinator import PROTOCOL_TYPE, Coordinator
from keylane.proxy.nodes.gate.evictions import REMEDY, Evictions
from keylane.proxy.nodes.gate.seals import Seals
from keylane.proxy.nodes.gate.strangers import EXPELLED_MAX, PAUSE_S_MIN, Strangers
from keylane.proxy.nodes.gate.verdicts import Received, receive
from keylane.proxy.nodes.predecessor import STABLE

log = logging.getLogger("keylane.nodes")

STALL_MARGIN_S: Final = 1.0
"""More than a session: a coordinator that waits for longer waits for no node."""
STALL_TURN_S: Final = 2.0
"""On top for a node that does not know the others: it leaves it to the one that led them."""
PREPARING: Final = "PreparingRebalance"
"""A JoinGroup waits for others."""


class Gate:
    """A member's measures against strangers in the nodes' group."""

    def __init__(
        self,
        coordinator: Coordinator,
        seals: Seals,
        *,
        protocol: str,
        session_s: float,
        try_s: float,
        clock: Callable[[], float],
        on_stranger: Callable[[], None],
    ) -> None:
        """try_s: how long one request may take."""
        self._coordinator, self._seals, self._protocol = coordinator, seals, protocol
        self._session_s, self._try_s, self._clock = session_s, try_s, clock
        self._strangers = Strangers(session_s)
        self._evictions = Evictions(coordinator.group, on_stranger)
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
        """Put all out: the coordinator says that they have no protocol in common with nodes.

        A node has one protocol only, so none of them is one; once they are gone, or after a pause,
        the next JoinGroup says whether it is still so. Raises: UpstreamLost, ConfigInvalid.
        """
        if pause_s := self._strangers.pause_s(self._clock()):
            await asyncio.sleep(pause_s)
            return
        asked_s = self._clock()
        described = await self._coordinator.describe(timeout_s=self._try_s)
        if self._is_of_nodes(described) or not self._is_fresh(asked_s):
            await asyncio.sleep(PAUSE_S_MIN)
            return
        members = [str(member.member_id) for member in described.members]
        self._evictions.report(members, described, {}, self._clock())
        gone = await self._evictions.put_out(members, self._coordinator, timeout_s=self._try_s)
        gone += await self._coordinator.clear_other_kinds(timeout_s=self._try_s)
        self._strangers.note_put_out(self._clock())
        if not gone:
            await asyncio.sleep(self._try_s)  # it is of a kind that shows none, or they have gone

    async def clear_stall(self, watch: Coordinator, member_id: str) -> None:
        """Put out what a JoinGroup of ours waits for, when that is no node's session any more.

        No member of a group that has been rebalancing for a session holds a lease: the coordinator
        answers no request well meanwhile. So nodes among them lose nothing but their place.
        """
        turn_s = 0.0 if self._verified else STALL_TURN_S
        await asyncio.sleep(self._session_s + STALL_MARGIN_S + turn_s)
        try:
            if not watch.is_known:
                await watch.find(timeout_s=self._try_s)
            asked_s = self._clock()
            described = await watch.describe(timeout_s=self._try_s)
            members = {str(member.member_id) for member in described.members}
            if described.group_state != PREPARING or member_id not in members:
                return
            if not self._is_fresh(asked_s):
                return
            members -= {member_id, *self._verified}
            log.warning(
                "members hold up the nodes for longer than a session, they are put out members=%d",
                len(members),
            )
            self._strangers.be_beside(self._clock())
            await self._evictions.put_out(members, watch, timeout_s=self._try_s)
        except UpstreamLost as error:
            log.debug("members that hold up the nodes stay reason=%s", error)

    # As a member.
    def lead(self, said: Mapping[str, bytes]) -> Received:
        """We lead a generation, and are shown what its members said."""
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
        """We are one of the nodes, and have what we were given."""
        self._strangers.agree()

    @property
    def guard_s(self) -> float:
        """For how long we have to be counted as a member yet (`strangers`)."""
        return self._strangers.guard_s(self._clock())

    def leave(self) -> None:
        """We are no member any more."""
        self._verified = frozenset()
        self._strangers.leave()

    def withholds(self, *, is_established: bool) -> bool:
        """Return whether a leader must give nothing away yet."""
        return self._strangers.withholds(self._clock(), is_established=is_established)

    async def tend(self, member_id: str, *, is_established: bool, contact_s: float) -> None:
        """Put out those that are due, between two heartbeats. Raises: UpstreamLost.

        member_id: ours; contact_s: when our last heartbeat that was answered well was sent.
        """
        known = self._strangers.known
        if not known or self._strangers.pause_s(self._clock()):
            return
        described = await self._coordinator.describe(timeout_s=self._try_s)
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
        """We were put out. Raises: ConfigInvalid, when our secret has to be the wrong one."""
        if self._strangers.note_expelled():
            raise ConfigInvalid(
                f"node_secret_file: this node was put out of the group {self._coordinator.group} "
                f"{EXPELLED_MAX} times by members that it cannot verify; give all nodes the same "
                f"secrets (if these members are no nodes: {REMEDY})"
            )

    def _is_of_nodes(self, described: Any) -> bool:
        """Return whether all its members speak our protocol, so that we can join."""
        return bool(
            described.group_state == STABLE
            and described.protocol_type == PROTOCOL_TYPE
            and described.protocol_data == self._protocol
        )

    def _is_fresh(self, asked_s: float) -> bool:
        """Return whether this process did not stop meanwhile: others may be members by now."""
        return self._clock() <= asked_s + self._try_s

    def _receive(self, described: Any, *, mutual: bool) -> Received:
        if described.error_code != ErrorCode.none or described.group_state != STABLE:
            return Received({}, {}, {})
        said = {str(each.member_id): bytes(each.member_metadata) for each in described.members}
        if str(described.protocol_data) not in {"", self._protocol}:
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
        self._evictions.report(self._strangers.known, described, reasons, now_s)
        due = self._strangers.due(now_s, is_established=is_established, contact_s=contact_s)
        if due:
            self._strangers.expect_leases(due, now_s, is_established=is_established)
            await self._evictions.put_out(due, self._coordinator, timeout_s=self._try_s)
            self._strangers.note_put_out(now_s)
