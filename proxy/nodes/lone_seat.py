"""Membership of a node without a number: it has to be the only node of its cluster.

Source: docs/decisions/030; KIP-134 (initial rebalance delay).

It differs from a numbered node in three points.

- The node that is there already keeps the seat: one that runs, or a numbered one, ends the start.
- A dead predecessor holds no start up. A member whose process is proved to have ended is put out of
  the group. Else its session has to run out, as Kafka cannot distinguish it from one that hangs.
- It serves as soon as the coordinator counts it as the only member. The first generation of an
  empty group takes `group.initial.rebalance.delay.ms`, 3 s by default, which it need not wait for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import ConfigInvalid, UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.nodes.coordinator import Coordinator
from keylane.proxy.nodes.gate.gate import PREPARING
from keylane.proxy.nodes.gate.seals import NO_TRUST, NodeTrust
from keylane.proxy.nodes.group import NodeGroup
from keylane.proxy.nodes.lease import lease_clock, patience_s
from keylane.proxy.nodes.predecessor import STABLE
from keylane.proxy.nodes.process_mark import Life, look_up, make_mark, pid_of
from keylane.proxy.topics.node_values import Membership, NodeInfo
from keylane.tasks import spawn

log = logging.getLogger("keylane.nodes")

CLIENT_ID: Final = "keylane-lone"
"""Client id, with a process's mark behind it: shown also while the group rebalances."""
SEAT: Final = 0
"""The pseudo partition: all of the journal."""
SEAT_COUNT: Final = 1
LOOK_S: Final = 0.02
"""Pause between two looks at the group while no member is counted: a start waits for it."""


class LoneSeat(NodeGroup):
    """The only node's membership; `start` with `SEAT_COUNT`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        session_timeout_ms: int,
        describe: Callable[[], NodeInfo],
        on_membership: Callable[[Membership], None],
        on_refused: Callable[[ConfigInvalid], None],
        clock: Callable[[], float] = lease_clock,
        trust: NodeTrust = NO_TRUST,
    ) -> None:
        """`on_refused` is called when others took over while we could not hold the seat."""
        mark = make_mark()
        super().__init__(
            cluster,
            session_timeout_ms=session_timeout_ms,
            describe=describe,
            on_membership=on_membership,
            clock=clock,
            client_id=f"{CLIENT_ID} {mark}" if mark else None,
            trust=trust,
        )
        self._on_refused = on_refused
        # A separate connection, as each asks one thing at a time.
        self._seat_watch = Coordinator(cluster, session_timeout_ms)
        self._patience_s = patience_s(self._session_s)
        self._until_s: float | None = None
        """End of the wait for another one, when this one gives up; None: there was none yet."""

    async def stop(self) -> None:
        """See `NodeGroup.stop`."""
        await super().stop()
        self._seat_watch.drop()

    # Differences.
    async def _is_in_the_way(self) -> bool:
        described, received = await self._look()
        if described.error_code != ErrorCode.none:
            return False
        if described.group_state != STABLE:
            # A member that joins right now joins with us, and the leader decides; a dead one
            # cannot join.
            for member in described.members:
                mark = str(member.client_id).removeprefix(f"{CLIENT_ID} ")
                if look_up(mark) is Life.ENDED:
                    await self._put_out(str(member.member_id), mark)
            return False
        others = [(member_id, hello.node) for member_id, hello in received.hellos.items()]
        for member_id, info in others:
            if not info.lone:
                raise ConfigInvalid(
                    f"node: {len(others)} nodes are in front of this cluster already, such as "
                    f"{info.place}; give this one a number, or stop them"
                )
            await self._pass(member_id, info)
        return bool(others)

    async def _pass(self, member_id: str, info: NodeInfo) -> None:
        """Put a dead predecessor out, or wait for what is not known. Raises: ConfigInvalid."""
        life, now_s = look_up(info.process), self._clock()
        if life is Life.ENDED:
            await self._put_out(member_id, info.process)
            return
        if self._until_s is None and life is not Life.RUNS:
            self._until_s = now_s + self._patience_s
            log.warning(
                "another node is in front of this cluster, it is waited for place=%s"
                " seconds_max=%.0f",
                info.place, self._patience_s,
            )  # fmt: skip
        if self._until_s is None or now_s >= self._until_s:
            pid = pid_of(info.process) if life is Life.RUNS else ""
            raise ConfigInvalid(
                f"node: another keylane{f', process {pid},' if pid else ''} at {info.place} "
                "serves this cluster; stop that one, or give each a number"
            )

    async def _put_out(self, member_id: str, mark: str) -> None:
        """End the membership of a process that has ended, as it would have done itself."""
        refused = await self._coordinator.leave(member_id)
        log.info(
            "seat of a process that has ended is taken pid=%s error_code=%s",
            pid_of(mark), next(iter(refused), ErrorCode.none).name,
        )  # fmt: skip

    async def _ask_to_join(self, metadata: bytes) -> Any:
        if not self._member_id:
            return await super()._ask_to_join(metadata)  # answered with an id at once
        watching = spawn(self._assume_when_alone(), "lone seat")
        try:
            joined = await super()._ask_to_join(metadata)
        except BaseException:
            self._lose()
            raise
        finally:
            watching.cancel()
        if joined.error_code != ErrorCode.none:
            self._lose()  # the lease that was assumed before the answer, too
        self._until_s = None
        return joined

    async def _assume_when_alone(self) -> None:
        """Hold the seat while the coordinator counts no other member in the first generation."""
        while True:
            pause_s, sent_s = LOOK_S, self._clock()
            try:
                if not self._seat_watch.is_known:
                    await self._seat_watch.find()
                sent_s = self._clock()
                described = await self._seat_watch.describe()
                if self._counts_us_first(described):
                    self._lease.assume({SEAT}, sent_s=sent_s)
                    self._settled.set()
                    self._note_started()
                    pause_s = self._beat_s
            except UpstreamLost as error:
                log.debug("group of nodes cannot be looked at reason=%s", error)
                pause_s = self._beat_s
            await asyncio.sleep(pause_s)

    def _counts_us_first(self, described: Any) -> bool:
        """Return whether our JoinGroup is taken, and before that of any other member."""
        if described.error_code != ErrorCode.none or described.group_state != PREPARING:
            return False
        if self._gate.withholds(is_established=False):
            return False  # a stranger that was put out may have held it
        members = {str(member.member_id) for member in described.members}
        return self._member_id in members and (self._lease.is_assumed or len(members) == 1)

    def _expect(self, membership: Membership) -> None:
        others = [node for node in membership.nodes if not node.lone]
        if others:  # their leader is of an older version, without lone nodes
            raise ConfigInvalid(
                f"node: the node at {others[0].place} is in front of this cluster already; give "
                "this one a number, or stop the others"
            )
