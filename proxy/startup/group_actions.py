"""Actions of operators on groups, done with keylane's own login."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, NoReturn

from keylane.errors import ActionRefused, UpstreamLost
from keylane.journal.owned import PreparedLock
from keylane.offsets.resets import GroupReset, PartitionReset
from keylane.proxy.apis.commits.group_reset import reset_group
from keylane.proxy.apis.groups.rebalance import rebalance_group
from keylane.proxy.apis.shared.context import Context, Shared
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.admin_looks import find_members, find_offsets
from keylane.proxy.groups.group_names import Place
from keylane.proxy.groups.rebalanced import Rebalanced
from keylane.proxy.net.backlog import Backlog
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers

ANSWER_S_MAX: Final = 10.0
"""A coordinator that takes longer must not keep a group's lock held."""
OPERATOR: Final = "operator"


class OwnConnection:
    """Stands for a client's connection: asks the coordinator of one group, as keylane itself.

    It is a `Connection` without a client: nothing waits on it, and nothing is passed on.
    """

    session_id = address = OPERATOR
    principal: str | None = None
    backlog = Backlog()

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group

    async def ask(self, entity: Any) -> Any:
        """Ask the group's coordinator. Raises: UpstreamLost."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await self._cluster.ask_coordinator(self._group, entity)
        except TimeoutError:
            raise UpstreamLost(
                f"the coordinator of group {self._group} does not answer in {ANSWER_S_MAX:g} s"
            ) from None

    def held(self, lock: PreparedLock) -> AbstractAsyncContextManager[None]:
        """A group's lock; each answer has its own bound."""
        return lock

    async def caught_up(self) -> None:
        """Nothing was asked that could be waited for."""

    async def others_done(self) -> None:
        """There are no other handlers."""

    def release(self) -> None:
        """No request waits behind this one."""

    def aside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Members' heartbeats bring up again what is to be done in their name."""

    def send(self, frame: Buffers) -> Awaitable[Frame]:  # noqa: ARG002
        """There is no client whose frames could pass."""
        self._refuse()

    def send_unanswered(self, frame: Buffers) -> None:  # noqa: ARG002
        """There is no client whose frames could pass."""
        self._refuse()

    def note_login(self, *, is_over: bool | None) -> None:  # noqa: ARG002
        """There is no client that logs in."""
        self._refuse()

    def note_principal(self, principal: str) -> None:  # noqa: ARG002
        """There is no client that logs in."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise AssertionError("an operator's action passes no frames")


class OwnActions:
    """Implements `GroupActions` of the control port."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._cluster = shared, shared.cluster

    def now_ms(self) -> int:
        """Return the time in ms since 1970."""
        return self._shared.groups.now_ms()

    async def has_group(self, group: str) -> bool:
        """Return whether Kafka knows the group. Raises: UpstreamLost."""
        return (await find_members(self._cluster, group)).kind is not None

    async def rebalance(self, group: str, *, is_dry: bool) -> Rebalanced:
        """Ask for a rebalance, or say what it would be.

        Raises: ActionRefused, UpstreamLost, NotCoordinator.
        """
        return await rebalance_group(group, self._context(group), is_dry=is_dry)

    async def reset(self, reset: GroupReset, *, is_dry: bool) -> list[PartitionReset]:
        """Reset, or say what it would be.

        Raises: ActionInvalid, ActionRefused, ActionUnknown, UpstreamLost, NotCoordinator.
        """
        found = await find_members(self._cluster, reset.group)
        if found.kind == "share":
            raise ActionRefused(
                f"group {reset.group} is a share group: kafka-share-groups resets it"
            )
        if found.members:
            raise ActionRefused(
                f"group {reset.group} has {found.members} members: stop them first, offsets are "
                "reset while there are none"
            )
        return await reset_group(reset, self._offsets, self._context(reset.group), is_dry=is_dry)

    async def _offsets(self, places: Sequence[Place], timestamp: int) -> dict[Place, int]:
        return await find_offsets(self._cluster, places, timestamp)

    def _context(self, group: str) -> Context:
        return Context(OwnConnection(self._cluster, group), self._shared)
