"""One partition of a share group in key order: its session at the broker, and its members.

Source: docs/decisions/048.

One task asks the broker, one request at a time: renewals that are due, outcomes that members have
decided, then more records. Members' requests change the dispatcher between its steps, and wake it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode

from keylane.config.share_rules import ShareRule
from keylane.errors import KeylaneError, ShareRefused, UpstreamLost
from keylane.proxy.share.alarm import Alarm
from keylane.proxy.share.broker_session import BrokerSession, SessionTaken, SharedPlace
from keylane.proxy.share.confirmations import Confirmations
from keylane.proxy.share.copies import Copies
from keylane.proxy.share.giving import give
from keylane.proxy.share.group_config import NO_RENEWALS, ask_group_config
from keylane.proxy.share.intake import BatchUnreadable, Hole, Intake
from keylane.proxy.share.kit import ShareKit
from keylane.proxy.share.outcome import Outcome
from keylane.proxy.share.settler import Settler
from keylane.proxy.share.taking import Taker, begin
from keylane.proxy.share.watcher import LogWatcher, has_records
from keylane.share.acks import is_accepted
from keylane.share.dispatcher import Dispatcher
from keylane.share.handover import HandOver
from keylane.share.held import HeldRecord, abandon
from keylane.share.summary import WindowSummary, summarise
from keylane.tasks import spawn
from keylane.wire.share import AckBatch

log = logging.getLogger("keylane.share")

DEMAND_TIMES: Final = 2
"""Records that are made ready, in terms of what members ask for at a time."""
STRANGERS_S: Final = 60.0
"""Time for which members beside keylane are known, or between two questions for them."""
PROVE_S: Final = 3.0
"""Longer than `Settler.prove` takes, but for a broker that does not answer."""
LIMIT_S: Final = 10.0
"""Time for which the group's limit of deliveries is remembered."""
CHECKS_PER_LOCK: Final = 30
"""Looks at members' time in the duration of a lock."""
PAUSES_S: Final = (0.0, 0.1, 0.3, 1.0, 2.0)
"""Before each try to open a session again."""
TAKEN_TRIES: Final = 3
"""Pause after another session of the name, so that two nodes do not take it in turns."""
STAND_BY_S: Final = 0.2
OUTCOMES_S: Final = 1.0
"""Time for outcomes of what members have while a node stops; nothing is handed out meanwhile."""


class Waiter(Protocol):
    """A member's request that waits for records."""

    def offer(self) -> bool:
        """Take records of the member's partitions; False: it takes none any more."""


class OrderedPartition:
    """The window of one partition, kept full while members ask for records."""

    def __init__(self, kit: ShareKit, place: SharedPlace, rule: ShareRule) -> None:
        self.place, self.rule = place, rule
        self._kit, self._clock = kit, kit.clock
        self.error_code = 0
        """Code for members while the partition cannot be served; 0: it can."""
        self.leader: tuple[int, int] | None = None
        """Broker id and epoch while a session is open."""
        self._demand: dict[Any, int] = {}
        self._waiting: dict[Waiter, None] = {}
        self._work = Alarm()
        self._tick_s = 0.0
        self._breaks = kit.lease.breaks()
        self._prove_s = 0.0
        """Time from which members beside keylane are looked for again."""
        self._strangers_s = 0.0
        """Time until which members beside keylane are known to hold records."""
        self._delivery_limit: int | None = None
        self._is_closing = self._is_draining = self._is_given = False
        self._leave_s: float | None = None
        """Time when the next node goes on, at the latest; None: this node does not stop."""
        self._left = asyncio.Event()
        self._is_taken_over = self._awaits_offer = True
        """Another process may have handed out records since this one held them; or may offer its
        locks, as long as this one has had no session."""
        self._make_window()
        self._watcher = LogWatcher(kit.cluster, kit.reader_kit, place, self._news_came)
        self._task = spawn(self._run(), f"share {place}")

    def _make_window(self) -> None:
        """Begin without records, and without members."""
        kit, rule, clock = self._kit, self.rule, self._clock
        dispatcher = self.dispatcher = Dispatcher(
            several_per_key=rule.several_per_key,
            pause_s=rule.pause_s,
            copies_rejected=rule.dead_letter is not None,
            frees_early=rule.confirm == "received",
        )
        self._confirmations = Confirmations(dispatcher, clock)
        self._limit_s = 0.0
        self._intake = Intake(
            self.place, dispatcher, self._confirmations, kit.reader_kit, kit.held_bytes, clock
        )
        self._settler = Settler(
            kit.cluster, self.place, dispatcher, self._intake, self._confirmations, clock
        )
        self._taker = Taker(
            kit.cluster, kit.reader_kit, kit.held_bytes, dispatcher, self._confirmations, clock
        )
        self._copies = Copies(
            self.place, rule.dead_letter, dispatcher, kit.letters, clock, self.wake
        )

    # Members.
    def join(self, member: Any, records_max: int) -> None:
        """Note a member and the records that it takes at a time."""
        self.dispatcher.join(member)
        self._demand[member] = records_max

    def forget(self, member: Any) -> None:
        """Note that a member takes no more; it holds what it has."""
        self._demand.pop(member, None)

    def leave(self, member: Any) -> None:
        """Release what a member holds."""
        self.dispatcher.leave(member, self._clock())
        self._demand.pop(member, None)
        self.wake()

    def keep(self, member: Any, records: Sequence[HeldRecord]) -> list[HeldRecord]:
        """Return the records that a member still has, as they are sent to it."""
        return self.dispatcher.keep(member, records, self._clock())

    def acknowledge(self, member: Any, batches: Sequence[AckBatch]) -> Outcome | int:
        """Take a member's outcomes; return their error code, or what to wait for."""
        if self._is_given or not self._is_here:
            return ErrorCode.not_leader_or_follower
        outcome = Outcome(is_early=self._answers_early(batches))
        code = self.dispatcher.acknowledge(member, batches, self._clock(), outcome.over)
        self.wake()
        return outcome if code is None else code

    def _answers_early(self, batches: Sequence[AckBatch]) -> bool:
        """Return whether a poll is answered before the broker has written its outcomes."""
        if self.rule.confirm != "received" or self.leader is None or not self.dispatcher.is_settled:
            return False
        may_copy = self.rule.dead_letter is not None and not is_accepted(batches)
        return not may_copy and self._confirmations.are_prompt(self._clock())

    def is_busy(self, member: Any) -> bool:
        """Return whether a member holds records."""
        return self.dispatcher.is_busy(member)

    def has_member(self, member: Any) -> bool:
        """Return whether a member takes part."""
        return member in self._demand

    @property
    def is_at_end(self) -> bool:
        """Return whether the broker has no record that is not held here."""
        return self._intake.is_at_end

    @property
    def has_members(self) -> bool:
        """Return whether any member takes part, or holds records yet."""
        return self.dispatcher.member_count > 0

    def summary(self) -> WindowSummary:
        """Return the window in numbers."""
        return summarise(self.dispatcher, self._clock(), self._delivery_limit)

    def wait(self, waiter: Waiter) -> None:
        """Offer records to a request as soon as there are some, first come first served."""
        self._waiting[waiter] = None
        self.wake()

    def stop_waiting(self, waiter: Waiter) -> None:
        """Forget a request."""
        self._waiting.pop(waiter, None)

    def wake(self) -> None:
        """Have the task look at what has changed."""
        self._work.ring()

    async def close(self) -> None:
        """End the session at the broker."""
        self._is_closing = True
        self._work.ring()
        self._watcher.close()
        await asyncio.wait({self._task})
        self._copies.close()

    @property
    def _is_here(self) -> bool:
        """Return whether members are sent to this node, and to no other since `_breaks`."""
        is_unbroken = self._kit.lease.breaks() == self._breaks
        return is_unbroken and self._kit.is_here(self.place)

    @property
    def may_hand_out(self) -> bool:
        """Return whether members may get what is held: no other node can have finished it."""
        is_serving = not (self._is_draining or self._is_given)
        return is_serving and self._kit.lease.has_time() and self._is_here

    def drain(self) -> None:
        """Hand out nothing more: a member could not acknowledge it to a node that stops."""
        self._is_draining = True

    async def leave_node(self) -> None:
        """Have the next node go on, as soon as members have finished what they have, or soon."""
        if self._leave_s is None:
            self._leave_s = self._clock() + OUTCOMES_S
        self.wake()
        await self._left.wait()

    @property
    def _is_to_leave(self) -> bool:
        if self._leave_s is None:
            return False
        is_at_rest = self.dispatcher.out_count == 0 and not self._copies.has_pending
        return is_at_rest or self._clock() >= self._leave_s

    # The task.
    async def _run(self) -> None:
        tries = 0
        while not self._is_closing:
            await asyncio.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            session = None
            try:
                if self._leave_s is not None:
                    self._left.set()
                    await self._work.wait(STAND_BY_S)
                    continue
                if not self._is_here:
                    await self._stand_by()
                    continue
                if not self._kit.lease.has_lease():
                    # A session that is opened ends that of the node that has the partition by now.
                    await self._work.wait(STAND_BY_S)
                    continue
                await self._learn_limit()
                others = self._kit.hand_overs if self._awaits_offer else None
                session, offer = await begin(self._kit.cluster, self.place, others)
                self._awaits_offer = False
                self.leader = session.leader_id, session.leader_epoch
                self._intake.begin(-1 if offer is None else offer.end_offset)
                await self._settle(session, offer)
                self.error_code = tries = 0
                await self._serve(session)
                if await self._end(session):
                    session = None  # it stays open until the next node has it
            except (ShareRefused, BatchUnreadable) as error:
                if not self.error_code:
                    log.error("share group is not served: %s", error)
                is_bad = isinstance(error, BatchUnreadable)
                self.error_code = (
                    ErrorCode.corrupt_message if is_bad else ErrorCode.unknown_server_error
                )
                tries = len(PAUSES_S)
            except SessionTaken as error:
                log.info("share session is opened again %s reason=%s", self.place, error)
                tries, self._is_taken_over = TAKEN_TRIES, True
            except (KeylaneError, OSError) as error:
                level = logging.WARNING if tries == 1 else logging.DEBUG
                log.log(level, "share session is opened again %s reason=%s", self.place, error)
                tries += 1
            except Exception:  # a mistake of keylane must not leave members waiting without end
                log.exception("share session failed, it is opened again %s", self.place)
                tries += 1
            finally:
                self.leader = None
                if session is not None:
                    session.close()
                self.dispatcher.lose_all(self._clock())
                self._copies.start()

    async def _stand_by(self) -> None:
        """Wait while another node has the partition; what members hold is forgotten here."""
        log.info("share group goes on at another node %s", self.place)
        self._begin_anew()
        lease = self._kit.lease
        while not (lease.has_lease() and self._kit.is_here(self.place)):
            if self._is_closing or self._leave_s is not None:
                break
            await self._work.wait(STAND_BY_S)
        self._breaks = lease.breaks()

    def _begin_anew(self) -> None:
        """Forget all records: another node has them."""
        self._copies.close()
        abandon(self.dispatcher.records.values(), ErrorCode.not_leader_or_follower)
        self._make_window()
        self._is_taken_over = self._awaits_offer = True
        self._is_given = self._leave_s is not None
        for member in self._demand:
            self.dispatcher.join(member)

    async def _serve(self, session: BrokerSession) -> None:
        """Serve members until the partition is closed, or placed at another node."""
        dispatcher, confirmations, intake = self.dispatcher, self._confirmations, self._intake
        while not self._is_closing and self._is_here and not self._is_to_leave:
            now_s = self._clock()
            if now_s >= self._tick_s:
                dispatcher.expire(now_s)
                self._tick_s = now_s + dispatcher.lock_s / CHECKS_PER_LOCK
            self._copies.start()
            self._offer()
            wanted = self._records_wanted()
            if now_s >= confirmations.renew_s and await confirmations.renew_due(session):
                await self._learn_limit()
                continue
            is_unproven = confirmations.has_written and not self._settler.is_proven
            if is_unproven and now_s >= self._prove_s:
                await self._look_for_strangers(session)
                continue
            if dispatcher.has_acks and now_s >= confirmations.acks_s:
                acks = dispatcher.next_acks()
                if wanted and not intake.acks_go_apart:
                    await self._fetch(session, wanted, acks)
                else:
                    intake.acks_go_apart = False
                    await confirmations.send(session, acks)
            elif wanted and now_s >= intake.fetch_s:
                await self._fetch(session, wanted)
            else:
                await self._rest(wanted)

    async def _end(self, session: BrokerSession) -> bool:
        """Give the session to the next node, if there is one; else end it, as far as it is ours.

        Only an owner ends the session: of another node it is the next one by the same name.
        """
        kit, hand_overs = self._kit, self._kit.hand_overs
        is_unbroken = kit.lease.breaks() == self._breaks
        is_moved = is_unbroken and (self._leave_s is not None or not self._is_here)
        if hand_overs is not None and is_moved and hand_overs.has_others():
            self._is_given = True  # an outcome that comes now finds its record released
            self._copies.close()
            if await give(session, self.dispatcher, self._confirmations, hand_overs, self._clock):
                self._begin_anew()
                return True
            self._is_given = self._leave_s is not None
        await self._send_last(session)
        if self._is_here:
            await session.end()
        return False

    async def _send_last(self, session: BrokerSession) -> None:
        """Send outcomes before the session ends, of which members may have been answered.

        If another node has opened one since, the broker refuses them.
        """
        try:
            async with asyncio.timeout(OUTCOMES_S):
                await self._confirmations.send_all(session)
        except (KeylaneError, OSError, TimeoutError) as error:
            log.log(
                logging.WARNING if self.dispatcher.freed_count else logging.DEBUG,
                "outcomes are not written, their records come again %s records=%d reason=%r",
                self.place, self.dispatcher.freed_count, error,
            )  # fmt: skip

    async def _rest(self, wanted: int) -> None:
        """Wait until something happens, or is due."""
        due_s = min(self._tick_s, self._confirmations.renew_s)
        if wanted:
            due_s = min(due_s, self._intake.fetch_s)
        if self.dispatcher.has_acks:
            due_s = min(due_s, self._confirmations.acks_s)
        for wake_s in (self.dispatcher.next_wake_s, self._leave_s):
            due_s = due_s if wake_s is None else min(due_s, wake_s)
        await self._work.wait(due_s - self._clock())

    def _offer(self) -> None:
        """Give records to requests that wait."""
        while self._waiting and self.may_hand_out and self.dispatcher.may_take(self._clock()):
            waiter = next(iter(self._waiting))
            if not waiter.offer():
                self._waiting.pop(waiter, None)

    def _records_wanted(self) -> int:
        """Return the number of records to ask the broker for."""
        dispatcher, bound = self.dispatcher, self.rule.look_ahead
        if self._is_draining:
            return 0
        if not self._demand:
            return len(dispatcher.gone)
        demand = min(sum(self._demand.values()), bound)
        room = min(bound - len(dispatcher.records), self._intake.room)
        if dispatcher.ready_count >= demand or not self._kit.held_bytes.has_room(self.place.group):
            room = 0 if dispatcher.records else 1
        more = DEMAND_TIMES * demand - dispatcher.ready_count
        return max(min(room, more), len(dispatcher.gone))

    def _news_came(self) -> None:
        self._intake.fetch_s = 0.0
        self._work.ring()

    async def _fetch(
        self, session: BrokerSession, wanted: int, acks: Sequence[AckBatch] = ()
    ) -> None:
        was_blank = self.dispatcher.end_offset < 0
        holes = await self._intake.fetch(session, wanted, acks)
        if holes:
            await self._look_into(session, holes)
        elif was_blank and not self.dispatcher.is_settled:
            await self._settle(session)  # the first records: what lies before is not known
        if self._intake.is_at_end and self.dispatcher.records and self._demand:
            self._watcher.watch(self.dispatcher.end_offset + 1)

    async def _look_into(self, session: BrokerSession, holes: Sequence[Hole]) -> None:
        """Release offsets that were passed over, if keylane has them: of an answer that was lost.

        Else compaction has removed them, or their release is being written, or members beside
        keylane hold them: then it has to be proved anew that nothing is missing.
        """
        is_sure = True
        for first, last in holes:
            if await self._confirmations.release(session, first, last):
                log.info("records come again %s offsets=%d-%d", self.place, first, last)
                is_sure = False
            elif await has_records(
                self._kit.cluster, self._kit.reader_kit, self.place, first, last
            ):
                self._intake.holes_elsewhere += last - first + 1
                is_sure = self._clock() < self._strangers_s
        if is_sure:
            self.dispatcher.is_settled = True
        else:
            await self._settle(session)

    async def _learn_limit(self) -> None:
        """Ask for the group's configuration, from time to time.

        Raises: ShareRefused: there are no renewals, or records would end without a dead letter.
        """
        if self._clock() < self._limit_s:
            return
        self._limit_s = self._clock() + LIMIT_S
        try:
            config = await ask_group_config(self._kit.cluster, self.place.group)
        except KeylaneError as error:
            if self.rule.dead_letter is not None and self._delivery_limit is None:
                raise ShareRefused(
                    f"{self.place}: dead letters need to know the limit: {error}"
                ) from None
            log.debug("limit of deliveries is not known %s reason=%s", self.place, error)
            return
        if not config.has_renewals:
            raise ShareRefused(NO_RENEWALS.format(group=self.place.group))
        self._delivery_limit, self._intake.locks_max = config.delivery_limit, config.locks_max
        self.dispatcher.last_delivery = max(1, config.delivery_limit - 1)

    async def _look_for_strangers(self, session: BrokerSession) -> None:
        """Ask what could not be known before anything was written of the group."""
        self._prove_s = self._clock() + STRANGERS_S
        try:
            async with asyncio.timeout(PROVE_S):
                is_alone = await self._settler.prove(session)
        except (UpstreamLost, TimeoutError) as error:
            log.debug("members beside keylane are not looked for %s reason=%r", self.place, error)
            return
        if not is_alone:
            self._note_strangers()

    def _note_strangers(self) -> None:
        """Log it. Such members may go on: their holes are not waited for each time."""
        self._strangers_s = self._clock() + STRANGERS_S
        log.warning(
            "records of a share group are not at keylane: members beside it hold them, or "
            "a transaction is open %s end_offset=%d", self.place, self.dispatcher.end_offset,
        )  # fmt: skip

    async def _settle(self, session: BrokerSession, offer: HandOver | None = None) -> None:
        """Have all locked that is not finished. Raises: UpstreamLost.

        offer: what the session holds already, as the former owner says.
        """
        dispatcher, settler = self.dispatcher, self._settler
        held = set[int]() if offer is None else await self._taker.take(session, offer)
        settler.delivery_limit = self._delivery_limit
        look_ahead = self.rule.look_ahead
        if not await settler.settle(session, look_ahead, lambda: self._is_closing):
            self._note_strangers()
        now_s, pause_s = self._clock(), self.rule.takeover_pause_s
        if self._is_taken_over and pause_s:
            until_s = max(now_s + pause_s, dispatcher.quiet_until_s)
            dispatcher.be_quiet(until_s, now_s, settler.released | held)
        self._is_taken_over = False
        for record in dispatcher.settle(now_s):
            log.debug("finished before %s %r", self.place, record)
