"""The nodes' own group in Kafka: this node's membership and lease in it.

Source: Kafka protocol guide (JoinGroup, SyncGroup, Heartbeat), KIP-62, KIP-394; decision 020.

`lease` proves that no two nodes serve the same group at once. This module keeps its rules: the
lease is suspended before JoinGroup is sent, and only a good SyncGroup or Heartbeat makes it last,
from when that was sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import ConfigInvalid, LoginRefused, NodeInvalid, RightMissing, UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.nodes.coordinator import (
    EXPELLED,
    LOADING,
    MOVED,
    REFUSED,
    Coordinator,
)
from keylane.proxy.nodes.gate.gate import Gate
from keylane.proxy.nodes.gate.seals import NO_TRUST, NodeTrust, Seals
from keylane.proxy.nodes.gate.verdicts import Received, decide
from keylane.proxy.nodes.lease import Lease, lease_clock
from keylane.proxy.nodes.predecessor import LOOK_PAUSE_S, Predecessor
from keylane.proxy.topics.node_values import (
    GROUP,
    NO_GENERATION,
    NO_NODE,
    Hello,
    Membership,
    NodeInfo,
    OwnershipClaim,
)
from keylane.tasks import spawn

log = logging.getLogger("keylane.nodes")

HEARTBEAT_S_MAX: Final = 1.0
"""Time in which nodes notice one that joins; Kafka's consumers take 3."""
HEARTBEAT_SHARE: Final = 5
"""Heartbeats that a session time-out has room for, at least."""
START_MARGIN_S: Final = 60.0
"""Time for a cluster that has just started: its offsets topic is made at the first request."""
START_SESSIONS: Final = 3
"""Session time-outs on top: for a dead predecessor, and for a node that dies meanwhile."""
LEAVE_TIMEOUT_S: Final = 2.0
BACKOFF_S_MIN: Final = 0.05
REFUSED_PAUSE_S: Final = 30.0
"""Each new try makes every node join again, and what refused us seldom goes away by itself."""


class NodeGroup:
    """This node's seat among the nodes of its cluster; an `Ownership`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        session_timeout_ms: int,
        describe: Callable[[], NodeInfo],
        on_membership: Callable[[Membership], None],
        clock: Callable[[], float] = lease_clock,
        client_id: str | None = None,
        trust: NodeTrust = NO_TRUST,
    ) -> None:
        """`describe` is asked at each join; `on_membership` is called when each node has joined."""
        self._session_s = session_timeout_ms / 1000
        self._describe, self._on_membership, self._clock = describe, on_membership, clock
        self.drain: Callable[[], Awaitable[None]] | None = None
        """Waits a moment for what was begun, before what is held is given up."""
        self._on_refused: Callable[[ConfigInvalid], None] | None = None
        """Called when this node is refused after its start, and gives up; None: it tries again."""
        self._beat_s = min(HEARTBEAT_S_MAX, self._session_s / HEARTBEAT_SHARE)
        self._coordinator = Coordinator(cluster, session_timeout_ms, client_id=client_id)
        # A separate connection: the other one is silent until JoinGroup is answered.
        self._watch = Coordinator(cluster, session_timeout_ms)
        self._lease = Lease(self._session_s)
        self._seals = Seals(lambda: cluster.cluster_id, trust.secrets)
        self._gate = Gate(self._coordinator, self._seals, clock, trust.on_stranger)
        self._lingers_in: int | None = None
        """Generation that we are in, whose leader does not verify; nothing is held."""
        self._is_leader = self._is_withheld = False
        self._predecessor = Predecessor(self._session_s)
        self._member_id, self._since = "", NO_GENERATION
        self._is_in_doubt = False
        """True: a JoinGroup of this member was sent and not answered."""
        self._logged: NodeInfo | None = None
        self._ic_partition_count = 0
        self._next_beat_s, self._backoff_s = 0.0, BACKOFF_S_MIN
        self._settled, self._changed = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._last_reason = ""
        self.membership: Membership | None = None
        """Nodes of the last generation that we have seen; None before the first."""

    # Questions of others.
    def has_lease(self) -> bool:
        """Return whether what the last agreement gave this node is its own for sure."""
        return self._lease.is_good(self._clock())

    def has_time(self) -> bool:
        """Return whether the lease's time is not over, also while the nodes agree anew."""
        return self._lease.has_time(self._clock())

    def breaks(self) -> int:
        """Return a number that grows when other nodes may have had what is this node's."""
        return self._lease.breaks

    def holds(self, ic_partition: int) -> bool:
        """See `Ownership`."""
        return self._lease.holds(ic_partition, self._clock())

    def takes_on(self, ic_partition: int) -> bool:
        """See `Ownership`."""
        return self._lease.takes_on(ic_partition, self._clock())

    def term(self, ic_partition: int) -> int:
        """See `Ownership`."""
        return self._lease.term(ic_partition)

    async def settled(self) -> None:
        """See `Ownership`; at most for the session time-out."""
        if self._settled.is_set():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._session_s):
                await self._settled.wait()

    def rejoin(self) -> None:
        """Publish to the others, soon: what `describe` says has changed."""
        self._changed.set()

    # Life.
    async def start(self, ic_partition_count: int) -> None:
        """Join; return when we are one of the nodes, and `on_membership` was called.

        Raises:
            ConfigInvalid: our number is another node's, or the brokers do not have us so.
            UpstreamLost: no coordinator, for a minute and three session time-outs.
            LoginRefused: the brokers do not let keylane in.
        """
        self._ic_partition_count = ic_partition_count
        first = self._first = asyncio.get_running_loop().create_future()
        self._task = spawn(self._run(first), "node group")
        waiting: set[asyncio.Future[None]] = {first, self._task}
        try:
            await asyncio.wait(
                waiting,
                timeout=START_MARGIN_S + START_SESSIONS * self._session_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if first.done():
                first.result()
            elif self._task.done():
                self._task.result()  # a bug of ours
            else:
                reason = self._last_reason or "the other nodes do not join"
                raise UpstreamLost(f"group {GROUP}: {reason}")
        except BaseException:  # also when the task that waits for it was cancelled
            await self.stop()
            raise

    async def stop(self) -> None:
        """Give everything up, and leave the group, so that no node waits for us."""
        self._give_up()
        await self._drain()
        self._lease.lose()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        await self._leave()
        self._coordinator.drop()
        self._watch.drop()
        self._settled.set()

    async def _run(self, first: asyncio.Future[None]) -> None:
        """Be a member through every failure; end only if we cannot become one at the start."""
        while True:
            try:
                await self._step()
            except ConfigInvalid as error:
                await self._leave()
                self._settled.set()
                if not first.done():
                    first.set_exception(error)
                    return
                log.error("node is not let in reason=%s", error)
                if self._on_refused is not None:
                    self._on_refused(error)
                    return
                await asyncio.sleep(REFUSED_PAUSE_S)  # no event says that we would be let in
            except UpstreamLost as error:
                if isinstance(error, LoginRefused) and not first.done():
                    first.set_exception(error)
                    return
                if str(error) != self._last_reason:
                    log.warning("group of nodes cannot be reached, trying again reason=%s", error)
                self._last_reason = str(error)
                await asyncio.sleep(self._backoff_s)  # no event says that a broker is back
                self._backoff_s = min(2 * self._backoff_s, self._beat_s)
            else:
                if self._lease.generation_id != NO_GENERATION and not self._is_withheld:
                    self._note_started()

    def _note_started(self) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    async def _step(self) -> None:
        if not self._coordinator.is_known:
            try:
                await self._coordinator.find()
            except RightMissing:
                self._take(ErrorCode.group_authorization_failed)
        if self._lingers_in is not None:
            await self._linger(self._lingers_in)
        elif self._lease.is_joining or self._lease.is_draining:
            await self._join()
        else:
            await self._beat()

    # Joining.
    async def _join(self) -> None:
        await self._drain()
        self._suspend()
        if self._is_in_doubt:
            await asyncio.sleep(self._gate.guard_s)  # one that we put out may still serve
            await self._end_member()
        if not self._member_id and await self._is_in_the_way():
            await asyncio.sleep(LOOK_PAUSE_S)  # no event says that a member is gone
            return
        self._changed.clear()
        info = self._describe()
        lease = self._lease
        hello = Hello(
            node=info,
            ic_partition_count=self._ic_partition_count,
            since=self._since,
            claim=OwnershipClaim(generation_id=lease.generation_id, partitions=lease.partitions),
        )
        self._is_in_doubt = bool(self._member_id)
        joined = await self._ask_to_join(self._seals.write_hello(hello, self._member_id))
        self._is_in_doubt = False
        if joined.error_code == ErrorCode.member_id_required:
            self._member_id = joined.member_id
        elif joined.error_code == ErrorCode.none and not joined.leader:
            self._member_id = joined.member_id
            await self._end_member()  # brokers deal out a group of a newer kind themselves
            await self._gate.clear()
        elif joined.error_code == ErrorCode.none:
            self._reached()
            self._member_id = joined.member_id
            self._predecessor.forget()
            await self._sync(joined, info)
        elif joined.error_code == ErrorCode.inconsistent_group_protocol:
            await self._gate.clear()
        else:
            self._take(joined.error_code)

    async def _ask_to_join(self, metadata: bytes) -> Any:
        watching = spawn(self._gate.clear_stall(self._watch, self._member_id), "stalled join")
        try:
            return await self._coordinator.join(self._member_id, metadata)
        finally:
            watching.cancel()

    async def _is_in_the_way(self) -> bool:
        """Return whether to wait for a node with our number before we join (`Predecessor`)."""
        described, received = await self._look()
        now_s = self._clock()
        return self._predecessor.is_awaited(described, received, self._describe().number, now_s)

    async def _look(self) -> tuple[Any, Received]:
        """Return the group as it is described, and those of its members that are nodes."""
        described = await self._coordinator.describe()
        if described.error_code in LOADING | MOVED:
            self._take(described.error_code)
        return described, await self._gate.look(described)

    async def _end_member(self) -> None:
        """End a member whose JoinGroup was given up, and become a new one.

        The request may still arrive. The coordinator would then make a generation with a member
        that does not know that it joined. A member that has left is refused.
        """
        for code in await self._coordinator.leave(self._member_id):
            self._take(code)
            raise UpstreamLost(f"group {GROUP}: LeaveGroup: {code.name}")
        self._forget()

    async def _sync(self, joined: Any, info: NodeInfo) -> None:
        self._is_leader = joined.leader == joined.member_id
        assignments = self._decide(joined)
        sent_s = self._clock()
        synced = await self._coordinator.sync(joined.member_id, joined.generation_id, assignments)
        if synced.error_code != ErrorCode.none:
            self._take(synced.error_code)
            return
        generation_id = int(joined.generation_id)
        try:
            verdict = self._seals.read_verdict(
                synced.assignment,
                generation_id=generation_id,
                number=info.number,
                leader=str(joined.leader),
                member_id=str(joined.member_id),
            )
        except NodeInvalid as error:
            if self._is_leader:  # another program sent it in our name, and was faster
                await asyncio.sleep(self._beat_s)  # it may be as fast in the next round
                raise UpstreamLost(f"group {GROUP}: our own word came back changed") from None
            log.warning(
                "leader of the nodes is no node member_id=%s reason=%s", joined.leader, error
            )
            self._gate.follow(str(joined.leader), is_node=False)
            self._lingers_in, self._next_beat_s = generation_id, 0.0
            return
        if not self._is_leader:
            self._gate.follow(str(joined.leader), is_node=True)
        if isinstance(verdict, str):
            raise ConfigInvalid(verdict)
        self._expect(verdict)
        self._reached()
        self._is_withheld = set(verdict.owners) == {NO_NODE}
        if not self._is_withheld:
            self._since = generation_id if self._since == NO_GENERATION else self._since
            self._gate.agree()
        self._logged, self.membership = info, verdict
        mine = verdict.owned_by(info.number)
        log.info(
            "nodes agreed generation_id=%d nodes=%s node=%d partitions=%d",
            generation_id, ",".join(str(node.number) for node in verdict.nodes), info.number,
            len(mine),
        )  # fmt: skip
        self._lease.synced(generation_id, mine, sent_s=sent_s)
        self._on_membership(verdict)
        self._settled.set()

    def _decide(self, joined: Any) -> dict[str, bytes]:
        """Return each member's message when we lead; else none."""
        if not self._is_leader:
            return {}
        said = {str(member.member_id): bytes(member.metadata) for member in joined.members}
        received = self._gate.lead(said)
        withholds = self._gate.withholds(is_established=received.is_established)
        return decide(joined, received, self._seals, withholds=withholds)

    def _expect(self, membership: Membership) -> None:
        """Check more of what makes us one of these nodes. Raises: ConfigInvalid."""

    # Staying.
    async def _beat(self) -> None:
        if await self._has_changed():
            self._give_up()
            return
        sent_s = await self._send_heartbeat(self._lease.generation_id)
        if sent_s is None:
            return
        self._lease.renewed(sent_s=sent_s)
        if self._is_withheld and self._is_leader and not self._gate.withholds(is_established=False):
            self._give_up()  # the next generation deals out what no node can hold any more
        elif self._is_leader:
            await self._gate.tend(
                self._member_id, is_established=not self._is_withheld, contact_s=sent_s
            )

    async def _send_heartbeat(self, generation_id: int) -> float | None:
        """Return the time at which one was sent that is answered well; None: it is refused."""
        sent_s = self._clock()
        answer = await self._coordinator.heartbeat(self._member_id, generation_id)
        if answer.error_code != ErrorCode.none:
            self._lingers_in = None
            self._take(answer.error_code)
            return None
        self._reached()
        return sent_s

    async def _linger(self, generation_id: int) -> None:
        """Stay beside a leader that does not verify, until one of the two is put out."""
        # Only the answer to a heartbeat says that it was.
        await asyncio.sleep(max(0.0, self._next_beat_s - asyncio.get_running_loop().time()))
        sent_s = await self._send_heartbeat(generation_id)
        if sent_s is None:
            return
        is_established = self._since != NO_GENERATION
        await self._gate.tend(self._member_id, is_established=is_established, contact_s=sent_s)

    async def _has_changed(self) -> bool:
        """Wait until the next heartbeat is due, or until our last message is out of date."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(max(0.0, self._next_beat_s - loop.time())):
                    await self._changed.wait()
            except TimeoutError:
                return False
            self._changed.clear()
            if self._describe() != self._logged:
                return True

    def _reached(self) -> None:
        """Note that the coordinator answered a request of ours well."""
        self._backoff_s, self._last_reason = BACKOFF_S_MIN, ""
        self._next_beat_s = asyncio.get_running_loop().time() + self._beat_s

    def _give_up(self) -> None:
        """Begin nothing more, as we join again or leave; what was begun has a moment to end."""
        if self._lease.is_good(self._clock()):
            self._lease.drain()
            self._settled.clear()
        else:
            self._suspend()

    async def _drain(self) -> None:
        if self._lease.is_draining and self.drain is not None:
            await self.drain()

    def _suspend(self) -> None:
        self._lease.suspend()
        self._settled.clear()

    def _take(self, code: ErrorCode) -> None:
        """Draw the consequence of an error. Raises: UpstreamLost, ConfigInvalid."""
        if code == ErrorCode.rebalance_in_progress:
            # This renews no lease: the coordinator counts the rebalance time-out from before it.
            self._give_up()
        elif code in EXPELLED:
            log.warning("node was expelled member_id=%s error_code=%s", self._member_id, code.name)
            self._forget()
            self._gate.note_expelled()
        elif code == ErrorCode.illegal_generation:
            # The member id stays, as with Kafka's consumers: a new member would make the others
            # wait until the old one was silent for a session time-out.
            log.warning("node missed a generation, joining again member_id=%s", self._member_id)
            self._lose()
        elif code in REFUSED:
            raise ConfigInvalid(f"group {GROUP}: {REFUSED[code]} ({code.name})")
        else:
            if code in MOVED:
                self._coordinator.drop()
            raise UpstreamLost(f"group {GROUP}: {code.name}")

    def _lose(self) -> None:
        self._lease.lose()
        self._settled.clear()

    def _forget(self) -> None:
        """Become no member, as before the first JoinGroup."""
        self._lose()
        self._member_id, self._since, self._is_in_doubt = "", NO_GENERATION, False
        self._lingers_in, self._is_leader, self._is_withheld = None, False, False
        self._gate.leave()

    async def _leave(self) -> None:
        """Leave the group, if its coordinator answers; hold nothing from before that on."""
        member_id, guard_s = self._member_id, self._gate.guard_s
        self._forget()
        if not member_id:
            return
        if guard_s:
            log.warning(
                "node leaves unnoticed, as one that it put out may still serve: others wait "
                "for its session member_id=%s seconds_max=%.0f", member_id, self._session_s
            )  # fmt: skip
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                if not self._coordinator.is_known:
                    await self._coordinator.find(timeout_s=LEAVE_TIMEOUT_S)
                await self._coordinator.leave(member_id, timeout_s=LEAVE_TIMEOUT_S)
        except (UpstreamLost, TimeoutError) as error:
            # The others wait for the session time-out then, as after a crash.
            log.warning("node leaves unnoticed member_id=%s reason=%r", member_id, error)
