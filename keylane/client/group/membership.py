"""A consumer's membership of a group: runs a machine on the loop's clock, and publishes effects.

The machines (`consumer_protocol`, `classic`) decide; here their requests are sent, one at a time,
metadata is looked up, and timers are set. With `group_protocol="auto"` the first join decides:
where the coordinator refuses the consumer protocol, the member goes on with the classic one.
Source: KIP-848, KIP-429.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol
from uuid import uuid4

from keylane.client.group.classic import ClassicMember
from keylane.client.group.codes import GROUP_ID_NOT_FOUND, INVALID_REQUEST, UNSUPPORTED_VERSION
from keylane.client.group.consumer_protocol import ConsumerMember
from keylane.client.group.effects import (
    CoordinatorMoved,
    Effect,
    GroupFailed,
    PartsAssigned,
    PartsLost,
    RevokeRequested,
)
from keylane.client.group.lines import ClassicLine, ConsumerLine, CoordinatorCall, Line
from keylane.client.group.lookups import Lookups, Topics
from keylane.client.group.settings import GroupSettings, GroupTopics, MemberIdentity
from keylane.client.values import TopicPartition
from keylane.errors import KeylaneError
from keylane.tasks import spawn
from keylane.wire.extensions import LaneRange

log = logging.getLogger("keylane.client.group")

LEAVE_S: Final = 5.0
"""Wait of `leave` for the coordinator's answer: after it the session's end does the rest."""
NO_CONSUMER_PROTOCOL: Final = frozenset({UNSUPPORTED_VERSION, GROUP_ID_NOT_FOUND, INVALID_REQUEST})
"""Refusals of a first join after which "auto" tries the classic protocol. keylane refuses with the
last one where the group has classic members; it may mean something else, so it is kept."""


class Coordinators(Topics, Protocol):
    """The cluster, as far as a membership needs it (`keylane.client.cluster.Cluster`)."""

    has_ranges: bool

    async def ask_coordinator(
        self,
        group_id: str,
        api_key: int,
        version_max: int,
        make: Callable[[int], Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Send `make(version)`, and return kio's entity of the answer, whatever its code."""
        ...

    def coordinator_lost(self, group_id: str) -> None:
        """Look for the coordinator before the next request."""
        ...


class Assignee(Protocol):
    """The consumer. Its methods are called on the loop, one at a time, and do not wait."""

    def on_assigned(self, parts: Mapping[TopicPartition, LaneRange | None]) -> None:
        """Begin to read these, new ones only; None: a whole partition."""
        ...

    def on_revoke_requested(self, parts: Collection[TopicPartition], deadline_s: float) -> None:
        """Finish these and release them; after the deadline (loop's clock) they are lost."""
        ...

    def on_lost(self, parts: Collection[TopicPartition]) -> None:
        """Stop with these: another member may have them."""
        ...

    def on_group_error(self, error: KeylaneError) -> None:
        """Raise this to the application: the member is in no group until it subscribes anew."""
        ...


class GroupMembership:
    """One member of one group. Use: `start`, wishes in any order, `leave`."""

    def __init__(self, cluster: Coordinators, settings: GroupSettings, assignee: Assignee) -> None:
        self._cluster, self._settings, self._assignee = cluster, settings, assignee
        self._lookups = Lookups(cluster, settings.metadata_max_age_s)
        self._line: Line | None = None
        self._task: asyncio.Task[None] | None = None
        self._call: asyncio.Task[Any] | None = None
        self._look: asyncio.Task[KeylaneError | None] | None = None
        self._wake = asyncio.Event()
        self._is_ending = False
        self._refusal: GroupFailed | None = None
        self._calls_begun = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    # -- state ------------------------------------------------------------------------------

    @property
    def member(self) -> MemberIdentity:
        """Identity for other requests, as it is now."""
        if self._line is None:
            return MemberIdentity(self._settings.group_id, "", -1, self._settings.instance_id)
        return self._line.machine.member

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """All that the member has, with what it was asked to give up."""
        return frozenset() if self._line is None else frozenset(self._line.machine.held.owned)

    @property
    def protocol(self) -> str:
        """The protocol that is spoken now."""
        return "classic" if isinstance(self._line, ClassicLine) else "consumer"

    # -- wishes -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group, or wait for a subscription; returns before there is an assignment."""
        assert self._task is None, "a membership starts once"
        settings = self._settings
        self._note_subscribed(GroupTopics(settings.topics, settings.pattern))
        is_classic = settings.group_protocol == "classic"
        self._line = self._classic_line() if is_classic else self._consumer_line()
        self._task = spawn(self._run(), f"group {settings.group_id}")

    async def leave(self) -> None:
        """Give all up and leave the group. Waits 5 s at most for the coordinator."""
        if self._task is None or self._line is None:
            return
        self._line.machine.leave(self._now_s())
        self._is_ending = True
        self._wake.set()
        await asyncio.wait({self._task}, timeout=LEAVE_S)
        for task in (self._task, self._call, self._look):
            if task is not None and not task.done():
                task.cancel()
        self._end_waiters()

    def subscribe(self, topics: Collection[str], pattern: str | None) -> None:
        """Change the subscription; no topic and no pattern leaves the group."""
        subscribed = GroupTopics(frozenset(topics), pattern)
        self._settings = replace(self._settings, topics=subscribed.topics, pattern=pattern)
        self._note_subscribed(subscribed)
        if self._line is not None:
            self._line.machine.subscribe(subscribed, self._now_s())
            self._wake.set()

    def release(self, parts: Collection[TopicPartition]) -> None:
        """Give up parts that were asked back: the coordinator gets to know at once."""
        if self._line is not None:
            self._line.machine.release(parts, self._now_s())
            self._wake.set()

    def note_poll(self) -> None:
        """Note that the application polled."""
        if self._line is None:
            return
        was_out = self._line.machine.is_out
        self._line.machine.note_poll(self._now_s())
        if was_out:
            self._wake.set()

    async def rejoin(self) -> None:
        """Join again; returns when the coordinator has answered, or has refused the member.

        For another request that was refused for the member's sake: UNKNOWN_MEMBER_ID,
        FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS. Parts
        that the member turns out to have lost are published as lost.
        """
        await self._renewed(lambda machine, now_s: machine.rejoin(now_s))

    async def give_way(self) -> None:
        """Lose all, leave and join anew; returns as `rejoin` does.

        For a commit that was refused because too many records are done behind one that is not.
        """
        await self._renewed(lambda machine, now_s: machine.give_way(now_s))

    async def _renewed(self, wish: Callable[[ConsumerMember | ClassicMember, float], None]) -> None:
        if self._line is None or self._task is None or self._task.done():
            return
        if self._line.machine.is_out:
            return
        wish(self._line.machine, self._now_s())
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._calls_begun, waiter))
        self._wake.set()
        await waiter

    # -- the loop ---------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while not self._is_over:
                await self._step()
        except Exception as error:
            # A bug here or in the consumer: without heartbeats the parts go to others.
            self._assignee.on_lost(self.owned)
            text = f"group {self._settings.group_id}: the membership ended: {error!r}"
            self._assignee.on_group_error(KeylaneError(text))
            raise
        finally:
            self._end_waiters()

    @property
    def _is_over(self) -> bool:
        """The member has left, and no answer is waited for."""
        return self._is_ending and self._current.machine.is_out and self._call is None

    async def _step(self) -> None:
        now_s = self._now_s()
        self._take_answer(now_s)
        self._current.machine.tick(now_s)
        self._publish()
        if self._current.machine.is_out:
            self._end_waiters()
        self._begin_call(now_s)
        self._begin_look(now_s)
        if not self._is_over:
            await self._pause(now_s)

    async def _pause(self, now_s: float) -> None:
        """Wait for an answer, a wish, or the next thing that is due."""
        due_s = self._current.machine.next_s
        if self._look is None:
            due_s = min(due_s, self._lookups.due_s(self._current.machine))
        timer = None
        if due_s < math.inf:
            timer = asyncio.get_running_loop().call_at(max(due_s, now_s), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._wake.clear()

    def _begin_call(self, now_s: float) -> None:
        if self._call is not None:
            return
        question = self._current.question(now_s)
        if question is None:
            return
        self._calls_begun += 1
        self._call = spawn(self._ask(question), f"group {self._settings.group_id} request")
        self._call.add_done_callback(lambda _: self._wake.set())

    async def _ask(self, question: CoordinatorCall) -> Any:
        """Return the answer's values, or the error in their place."""
        try:
            entity = await self._cluster.ask_coordinator(
                self._settings.group_id,
                question.api_key,
                question.version_max,
                question.make,
                timeout_s=question.timeout_s,
            )
            return self._current.read(entity)
        except KeylaneError as error:
            return error

    def _take_answer(self, now_s: float) -> None:
        if self._look is not None and self._look.done():
            look, self._look = self._look, None
            failure = look.result()
            if failure is not None:
                self._lookups.failed(now_s)
                log.warning(
                    "metadata not read group=%s reason=%s", self._settings.group_id, failure
                )
        if self._call is None or not self._call.done():
            return
        call, self._call = self._call, None
        answer = call.result()
        if not isinstance(answer, KeylaneError):
            self._current.answered(answer, now_s)
        elif answer.retriable:
            log.info("no answer group=%s reason=%s", self._settings.group_id, answer)
            self._current.machine.failed(now_s)
        else:
            code = getattr(answer, "code", answer.error_code)
            self._current.refused(code, type(answer).__name__, str(answer), now_s)
        if self._current.machine.is_settled:
            self._end_waiters(self._calls_begun)

    def _begin_look(self, now_s: float) -> None:
        machine = self._current.machine
        if self._look is not None or now_s < self._lookups.due_s(machine):
            return

        async def look() -> KeylaneError | None:
            try:
                await self._lookups.look(machine, now_s)
            except KeylaneError as error:
                return error
            return None

        self._look = spawn(look(), f"group {self._settings.group_id} metadata")
        self._look.add_done_callback(lambda _: self._wake.set())

    # -- effects ----------------------------------------------------------------------------

    def _publish(self) -> None:
        for effect in self._current.machine.take_effects():
            self._publish_one(effect)

    def _publish_one(self, effect: Effect) -> None:
        group_id = self._settings.group_id
        if isinstance(effect, CoordinatorMoved):
            self._cluster.coordinator_lost(group_id)
        elif isinstance(effect, PartsAssigned):
            log.info("assigned group=%s parts=%s", group_id, len(effect.parts))
            self._assignee.on_assigned(effect.parts)
        elif isinstance(effect, RevokeRequested):
            log.info("revocation requested group=%s parts=%s", group_id, len(effect.parts))
            self._assignee.on_revoke_requested(effect.parts, effect.deadline_s)
        elif isinstance(effect, PartsLost):
            log.warning("lost group=%s parts=%s", group_id, len(effect.parts))
            self._assignee.on_lost(effect.parts)
        else:
            self._fail(effect)

    def _fail(self, failed: GroupFailed) -> None:
        """Publish a refusal, or take the other protocol."""
        has_joined = self._current.machine.has_joined
        is_first = isinstance(self._current, ConsumerLine) and not has_joined
        code, group_id = failed.error.code, self._settings.group_id
        if self._settings.group_protocol == "auto" and is_first and code in NO_CONSUMER_PROTOCOL:
            log.info("classic protocol group=%s reason=%s", group_id, failed.error)
            self._refusal = failed if code == INVALID_REQUEST else None
            self._line = self._classic_line()
            return
        if self._refusal is not None and not has_joined:
            failed = self._refusal  # the classic protocol has no room for the broker's reason
        self._refusal = None
        log.error("group refused the member group=%s error_code=%s", group_id, code)
        self._assignee.on_group_error(failed.error)

    # -- inside -----------------------------------------------------------------------------

    @property
    def _current(self) -> Line:
        assert self._line is not None, "the membership is not started"
        return self._line

    def _consumer_line(self) -> ConsumerLine:
        machine = ConsumerMember(
            self._settings,
            str(uuid4()),
            self._cluster,
            now_s=self._now_s(),
            asks_ranges=self._cluster.has_ranges,
        )
        return ConsumerLine(machine, self._settings)

    def _classic_line(self) -> ClassicLine:
        machine = ClassicMember(self._settings, str(uuid4()), now_s=self._now_s())
        return ClassicLine(machine, self._settings)

    def _note_subscribed(self, subscribed: GroupTopics) -> None:
        self._lookups.subscribed, self._lookups.is_new = subscribed, True

    def _end_waiters(self, below: float = math.inf) -> None:
        """Let those go on that began to wait before the call of this number was sent."""
        for number, waiter in self._waiters:
            if number < below and not waiter.done():
                waiter.set_result(None)
        self._waiters = [each for each in self._waiters if not each[1].done()]

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
