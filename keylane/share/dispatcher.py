"""Records of one partition for one share group: which may be handed out, and to which member.

Source: KIP-932 (acquisition locks, delivery counts); docs/decisions/048.

Theory. keylane alone acquires the partition's records, and holds their locks. Of each key it hands
out the lowest offset that is not finished, and nothing else of that key until the broker has
confirmed that it is finished: a key is then at one member at a time, and its records finish in
order. A record that was released goes back to the broker, which counts and limits deliveries; its
key waits until it comes again, or until it is known that it never will.

What members hold outlives the session at the broker. When a session ends, the locks of all records
are gone; records at members stay with them, and their outcomes are sent under the locks of the next
session. Until that one has *settled*, that is until keylane holds every record that is not
finished below the highest one, nothing is handed out: a lower one of the same key may be missing.
Time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from keylane.share.acks import sort_acks
from keylane.share.held import AckTicket, HeldRecord, KeyQueue, KeyQueues, records_in
from keylane.share.invariants import check_window
from keylane.share.lowest import LowestOffset
from keylane.share.outgoing import Outgoing, renewals_of
from keylane.share.ready import CHAIN_PARTS, ReadyQueue, no_pause
from keylane.share.states import DONE, GONE, HELD, OUT
from keylane.wire.share import REJECT, RELEASE, AckBatch


class Dispatcher:
    """The window of one partition.

    Invariants: a key has records at one member at most, and no more than `several_per_key`; a
    record is handed out while no lower one of its key is known that is not handed out with it; a
    record leaves when the broker has confirmed its outcome, or surely finished it.
    """

    def __init__(
        self,
        *,
        several_per_key: int = 1,
        pause_s: Callable[[int], float] = no_pause,
        copies_rejected: bool = False,
        frees_early: bool = False,
    ) -> None:
        """pause_s: by delivery count, the time before a released record is handed out again.

        copies_rejected: a record that is not delivered again is given to `to_copy` before the
        broker learns of it. frees_early: a key goes on as soon as a member has finished its record,
        which stays here: its outcome is sent as often as it takes.
        """
        self._several, self._pause_s, self._copies = several_per_key, pause_s, copies_rejected
        self._frees_early = frees_early
        self.lock_s = 30.0
        """Duration of a lock, by the broker's last answer."""
        self.last_delivery: int | None = None
        """Delivery after which a record that is released gets a dead letter; None: not known."""
        self.records: dict[int, HeldRecord] = {}
        self._lowest = LowestOffset(self.records)
        self._keys = KeyQueues()
        self._ready = ReadyQueue(self.records, self._keys.long)
        self._at_member: dict[Any, dict[int, HeldRecord]] = {}
        """By member, also of those that have nothing."""
        self._outgoing = Outgoing()
        self.to_copy: list[HeldRecord] = []
        self.gone: dict[int, HeldRecord] = {}
        """Records without a lock that are not known to be finished: they come again."""
        self.out_count = self.freed_count = 0
        """Records at members; and those that are finished and whose end is not confirmed."""
        self.handed_out = self.redelivered = 0
        """Records handed out so far; and those of them that had been delivered before."""
        self.is_settled = False
        self.quiet_until_s = 0.0
        """Time before which a record that another process has had may be at work yet."""
        self.end_offset = -1
        """Highest offset that was acquired."""

    # Members.
    @property
    def ready_count(self) -> int:
        """Keys of which a record may be handed out."""
        return self._ready.count

    @property
    def member_count(self) -> int:
        """Members that take part."""
        return len(self._at_member)

    def join(self, member: Any) -> None:
        """Note a member; one that is known stays as it is."""
        self._at_member.setdefault(member, {})

    def is_busy(self, member: Any) -> bool:
        """Return whether a member has records."""
        return bool(self._at_member.get(member))

    def leave(self, member: Any, now_s: float) -> None:
        """Release all that a member holds, to be handed out as soon as it comes again."""
        for record in list(self._at_member.pop(member, {}).values()):
            self._decide(record, RELEASE, None, now_s, pause_s=0.0)

    def may_take(self, now_s: float) -> bool:
        """Return whether any record can be handed out."""
        self.wake(now_s)
        return self.is_settled and self.ready_count > 0

    def take(self, member: Any, records_max: int, now_s: float) -> list[HeldRecord]:
        """Hand out records to a member that takes part; ascending, `records_max` at most.

        No member has more than its share of the keys that are ready and the records that are at
        members; `several_per_key` it may get. See `ReadyQueue.choose`.
        """
        if not self.may_take(now_s):
            return []
        share = -(-(self.ready_count + self.out_count) // len(self._at_member))
        room = min(records_max, max(self._several, share - len(self._at_member[member])))
        turns = CHAIN_PARTS * len(self.records) // len(self._at_member)
        taken = self._ready.choose(room, self._several, turns, now_s)
        for record in taken:
            self._hand_out(record, member, now_s)
        return taken

    def _hand_out(self, record: HeldRecord, member: Any, now_s: float) -> None:
        record.state, record.member = OUT, member
        record.deadline_s = now_s + self.lock_s
        record.key.busy += 1
        self.out_count += 1
        self.handed_out += 1
        self.redelivered += record.count > 1
        self._at_member[member][record.offset] = record

    def keep(self, member: Any, records: Iterable[HeldRecord], now_s: float) -> list[HeldRecord]:
        """Return records that a member still has, as they are sent to it: its time begins now."""
        kept = [each for each in records if each.state == OUT and each.member is member]
        for record in kept:
            record.deadline_s = now_s + self.lock_s
        return kept

    def put_back(self, member: Any, records: Iterable[HeldRecord], now_s: float) -> None:
        """Take back records that were not sent to a member; those it has lost are passed over."""
        for record in records:
            if record.state != OUT or record.member != member:
                continue
            self._take_from(record)
            record.state, record.member = HELD, None
            record.key.busy -= 1
            if not record.is_locked:
                self._note_gone(record, now_s)
            self._look_at(record.key, now_s)
            if record.is_finished:
                self._drop(record, now_s)

    def acknowledge(
        self,
        member: Any,
        batches: Sequence[AckBatch],
        now_s: float,
        on_over: Callable[[AckTicket], None],
    ) -> int | None:
        """Take a member's acknowledgements of this partition: all of them, or none.

        Return None if `on_over` will be called with the outcome, else the error code at once; 0:
        nothing was left to confirm. Offsets below the window are finished, and accepted.
        """
        decided, renewed, error_code = sort_acks(
            batches, self._at_member.get(member, {}), self.bounds
        )
        if error_code:
            return error_code
        for record in renewed:
            record.deadline_s = now_s + self.lock_s
        if not decided:
            return 0
        ticket = AckTicket(len(decided), on_over)
        for record, outcome in decided:
            self._decide(record, outcome, ticket, now_s)
        return None

    def bounds(self) -> tuple[int, int]:
        """Return the lowest offset that is not finished, and the highest that was acquired."""
        return self._lowest.find(self.end_offset + 1), self.end_offset

    def expire(self, now_s: float) -> int:
        """Release records whose members' time is over; return their number."""
        out = (record for held in self._at_member.values() for record in held.values())
        over = [record for record in out if record.deadline_s <= now_s]
        for record in over:
            self._decide(record, RELEASE, None, now_s)
        return len(over)

    def _decide(
        self,
        record: HeldRecord,
        outcome: int,
        ticket: AckTicket | None,
        now_s: float,
        *,
        pause_s: float | None = None,
    ) -> None:
        """Note what becomes of a record that was at a member."""
        self._take_from(record)
        record.state, record.outcome, record.ticket = DONE, outcome, ticket
        record.is_sent, record.member = False, None
        if outcome == RELEASE:
            pause_s = self._pause_s(record.count) if pause_s is None else pause_s
            record.not_before_s = now_s + min(pause_s, self.lock_s)
        if self._is_to_copy(record):
            self.to_copy.append(record.copying())
        else:
            self._send(record, now_s)

    def _send(self, record: HeldRecord, now_s: float) -> None:
        """Have the outcome of a record sent as soon as it is locked; or end the record."""
        if record.is_locked:
            if self._frees_early and record.outcome != RELEASE:
                self._free(record, now_s)
            self._outgoing.add(record)
        elif record.is_finished:
            self._end(record, now_s)
        elif record.outcome == RELEASE:  # the broker has released it already, or archived it
            self._release(record, now_s)

    def _is_to_copy(self, record: HeldRecord) -> bool:
        """Return whether a dead letter is to be written before the broker learns the outcome."""
        return self._copies and not record.is_copied and record.is_last(self.last_delivery)

    def copied(self, record: HeldRecord, now_s: float) -> None:
        """Note that a dead letter of the record is written: the broker may learn its end."""
        record.is_copied, record.is_copying = True, False
        record.outcome = REJECT  # whatever limit the broker has by now
        self._send(record, now_s)

    def _take_from(self, record: HeldRecord) -> None:
        self._at_member.get(record.member, {}).pop(record.offset, None)  # it may have left
        self.out_count -= 1

    # The session at the broker.
    def acquire(
        self,
        offsets: Sequence[int],
        points: Sequence[int],
        count: int,
        now_s: float,
        block: Any = None,
        first_row: int = 0,
    ) -> None:
        """Take records that the broker has locked, ascending, with one delivery count.

        offsets, points: (n,) of records that stand in the rows from `first_row` on of `block`.
        """
        for row, (offset, point) in enumerate(zip(offsets, points, strict=True), first_row):
            record = self.records.get(offset)
            if record is not None and record.is_another(point, block, row):
                self._forget(record, now_s)
                record = None
            if record is None:
                key = self._keys.of(point)
                record = self.records[offset] = HeldRecord(offset, key, count, now_s)
                self._lowest.add(offset)
                record.block, record.row = block, row
                record.not_before_s = self.quiet_until_s if count > 1 else 0.0
                former = key.records[0] if key.records else None
                if not key.insert(record):
                    continue  # it waits behind others, of which nothing has changed
                if former is not None:
                    self._ready.unready(former)
            else:
                self._lock_again(record, count, now_s)
                record.block, record.row = block, row
            self._look_at(record.key, now_s)
        if offsets:
            self.end_offset = max(self.end_offset, offsets[-1])
        self._lowest.forget()

    def _forget(self, record: HeldRecord, now_s: float) -> None:
        """End a record that the log has lost; what becomes of it at its member says nothing."""
        if record.state == OUT:
            self._take_from(record)
        record.is_sent = False
        self._outgoing.discard(record)
        self._end(record, now_s)

    def _lock_again(self, record: HeldRecord, count: int, now_s: float) -> None:
        is_unsent = record.is_locked and not record.is_sent
        self.gone.pop(record.offset, None)
        record.is_locked, record.is_finished = True, False
        record.count, record.locked_s, record.strikes = count, now_s, 0
        if record.state == GONE:
            record.state = HELD
            record.key.busy -= 1
        elif record.state == DONE and not record.is_copying:
            record.is_sent = False
            if self._is_to_copy(record):  # it has become its last delivery
                self._outgoing.discard(record)
                self.to_copy.append(record.copying())
            elif not is_unsent:
                self._outgoing.add(record)

    def acquire_gap(self, first: int, last: int) -> None:
        """Take offsets that the broker has locked and that have no record."""
        self._outgoing.add_gap(first, last)
        self.end_offset = max(self.end_offset, last)

    def fetched(self, sent_s: float, highest: int | None, now_s: float) -> list[HeldRecord]:
        """Judge records without a lock by a fetch that was sent at `sent_s`; return archived ones.

        The broker gives what is available lowest first. So a released record that two fetches
        have not brought, but later ones or none at all, is archived. `settle` judges all others.
        highest: the last offset that the fetch brought, None: none.
        """
        gone = self.gone.values() if self.is_settled else ()
        archived = [record for record in gone if record.strike(sent_s, highest)]
        for record in archived:
            self._finish(record, now_s)
        return archived

    def next_acks(self) -> list[AckBatch]:
        """Return outcomes for the broker, ascending; `acked` or `unsend` follows for each."""
        return self._outgoing.take()

    @property
    def locked_count(self) -> int:
        """Offsets that are locked at the broker for keylane."""
        locked = sum(record.is_locked for record in self.records.values())
        return locked + self._outgoing.gap_count

    @property
    def has_acks(self) -> bool:
        """Return whether `next_acks` has any."""
        return bool(self._outgoing)

    def acked(self, batches: Iterable[AckBatch], now_s: float) -> None:
        """Note outcomes that the broker has confirmed."""
        for record in self._sent_in(batches):
            if record.outcome == RELEASE:  # it waits to come again
                self._release(record, now_s)
            else:
                self._end(record, now_s)

    def _sent_in(self, batches: Iterable[AckBatch]) -> list[HeldRecord]:
        return [r for r in records_in(self.records, batches) if r.state == DONE and r.is_sent]

    def refused(self, batches: Iterable[AckBatch], error_code: int, now_s: float) -> None:
        """Note outcomes that the broker has refused: the locks were lost. The records come again.

        error_code: for the members that have acknowledged them. Of a record whose key has gone on
        the outcome is sent again when it comes.
        """
        for record in self._sent_in(batches):
            if record.is_free:
                self._unlock(record, now_s)
            else:
                self._release(record, now_s, error_code)

    def unsend(self, batches: Sequence[AckBatch]) -> None:
        """Take back outcomes that were not judged: they are sent again."""
        self._outgoing.add_gaps(batches, self.records.__contains__)
        for record in self._sent_in(batches):
            record.is_sent = False
            self._outgoing.add(record)

    def renewals(self, now_s: float) -> list[AckBatch]:
        """Return renewals of all locks of which a third is over."""
        return renewals_of(self.records.values(), now_s, self.lock_s)

    def renewed(self, batches: Iterable[AckBatch], now_s: float) -> None:
        """Note locks that are renewed."""
        for record in records_in(self.records, batches):
            record.locked_s = now_s

    def lose(self, batches: Iterable[AckBatch], now_s: float) -> None:
        """Note locks that the broker does not know: these records come again."""
        for record in records_in(self.records, batches):
            if record.is_locked:
                self._unlock(record, now_s)
        self._outgoing.keep_locked()

    def lose_all(self, now_s: float) -> None:
        """Note the end of the session at the broker, with all locks. Nothing is settled."""
        self.is_settled = False
        self._outgoing.clear()
        for record in list(self.records.values()):
            if record.is_locked:
                self._unlock(record, now_s)

    def _unlock(self, record: HeldRecord, now_s: float) -> None:
        record.is_locked = False
        record.gone_s, record.strikes = now_s, 0
        self.gone[record.offset] = record
        if record.state == HELD:
            self._note_gone(record, now_s)
        elif record.state == DONE and record.outcome == RELEASE and not record.is_copying:
            self._release(record, now_s)

    def be_quiet(self, until_s: float, now_s: float, apart: Container[int] = ()) -> None:
        """Hand out no record before `until_s` that other processes had: none but those `apart`."""
        self.quiet_until_s = until_s
        had = (r for r in self.records.values() if r.count > 1 and r.offset not in apart)
        self._ready.delay(had, until_s, now_s)

    def delay(self, first: int, last: int, until_s: float, now_s: float) -> None:
        """Hand out no record of a range before `until_s`."""
        self._ready.delay(records_in(self.records, [AckBatch(first, last, b"")]), until_s, now_s)

    def settle(self, now_s: float) -> list[HeldRecord]:
        """Note that every record that is not finished, up to the last one, is locked.

        Return records that had been locked before and are finished: their outcomes had arrived at
        the broker, or it has archived them.
        """
        finished = list(self.gone.values())
        for record in finished:
            self._finish(record, now_s)
        self.is_settled = True
        return finished

    def _finish(self, record: HeldRecord, now_s: float) -> None:
        """Take in that the broker has finished a record. What a member has, it keeps."""
        if record.state == OUT or record.is_copying:
            record.is_finished = True
            del self.gone[record.offset]
        else:
            self._end(record, now_s)

    def _end(self, record: HeldRecord, now_s: float) -> None:
        """End a record that the broker has finished, by what was sent or before."""
        ticket, record.ticket = record.ticket, None
        self._drop(record, now_s)
        if ticket is not None:
            ticket.confirm(0 if record.is_sent else ErrorCode.invalid_record_state)

    # States.
    def _release(self, record: HeldRecord, now_s: float, error_code: int = 0) -> None:
        """Answer its member; the record waits to come again."""
        ticket, record.ticket = record.ticket, None
        self._note_gone(record, now_s)
        if ticket is not None:
            ticket.confirm(error_code)

    def _note_gone(self, record: HeldRecord, now_s: float) -> None:
        """The record is HELD or DONE."""
        if record.state == HELD:
            record.key.busy += 1
            self._ready.unready(record.key.records[0])
        record.state, record.is_locked, record.is_sent = GONE, False, False
        record.gone_s, record.strikes, record.block = now_s, 0, None
        self.gone[record.offset] = record

    def _drop(self, record: HeldRecord, now_s: float) -> None:
        self._free(record, now_s)
        self.freed_count -= 1
        record.state, record.is_locked, record.block = GONE, False, None
        del self.records[record.offset]
        self.gone.pop(record.offset, None)

    def _free(self, record: HeldRecord, now_s: float) -> None:
        """Let a key go on without a record that is finished."""
        if record.is_free:
            return
        key, record.is_free = record.key, True
        self.freed_count += 1
        key.remove(record)
        key.busy -= record.state != HELD
        self._ready.unready(record)
        if key.records:
            self._look_at(key, now_s)
        else:
            self._keys.forget(key)

    def _look_at(self, key: KeyQueue, now_s: float) -> None:
        """Make the first record of a key ready; or end it, if crashes have used it up."""
        if key.busy or not key.records:
            return
        head, last = key.records[0], self.last_delivery
        if self._copies and last is not None and head.count > last:
            self._ready.unready(head)
            head.state, head.outcome = DONE, REJECT
            key.busy += 1
            self.to_copy.append(head.copying())
            return
        self._ready.look_at(key, now_s)

    def wake(self, now_s: float) -> None:
        """Make records ready whose wait after a release is over."""
        self._ready.wake(now_s)

    @property
    def next_wake_s(self) -> float | None:
        """Time when `wake` has something to do; None: nothing waits."""
        return self._ready.next_wake_s

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        counts = self.ready_count, self.out_count
        check_window(self.records, self.gone, self._outgoing.records, counts, self._several)
