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

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.share.acks import check_batches, runs_of
from keylane.share.held import DONE, GONE, HELD, OUT, Held, KeyQueues, Ticket
from keylane.share.ready import ReadyQueue, no_pause
from keylane.wire.share import GAP, REJECT, RELEASE, RENEW, AckBatch

RENEWED_PART: Final = 3
"""A lock is renewed when this part of its duration is over."""


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
    ) -> None:
        """pause_s: by delivery count, the time before a released record is handed out again.

        copies_rejected: a record that is not delivered again is given to `to_copy` before the
        broker learns of it.
        """
        self._several, self._pause_s, self._copies = several_per_key, pause_s, copies_rejected
        self.lock_s = 30.0
        """Duration of a lock, by the broker's last answer."""
        self.delivery_limit: int | None = None
        """The group's limit of deliveries, where it is known."""
        self.records: dict[int, Held] = {}
        self._keys = KeyQueues()
        self._ready = ReadyQueue(self.records)
        self._at_member: dict[Any, dict[int, Held]] = {}
        """By member, also of those that have nothing."""
        self._unsent: list[Held] = []
        self._gaps: list[tuple[int, int]] = []
        self.to_copy: list[Held] = []
        self.gone: dict[int, Held] = {}
        """Records without a lock that are not known to be finished: they come again."""
        self.out_count = 0
        self.is_settled = False
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

    def leave(self, member: Any, now_s: float) -> None:
        """Release all that a member holds, to be handed out as soon as it comes again."""
        for record in list(self._at_member.pop(member, {}).values()):
            self._decide(record, RELEASE, None, now_s, pause_s=0.0)

    def records_of(self, member: Any) -> int:
        """Return the number of records at a member."""
        return len(self._at_member.get(member, ()))

    def take(self, member: Any, records_max: int, now_s: float) -> list[Held]:
        """Hand out records to a member that takes part; ascending, `records_max` at most.

        No member gets more at a time than its share of the keys that are ready and the records that
        are at members; `several_per_key` it may get.
        """
        self.wake(now_s)
        if not self.is_settled or not self.ready_count:
            return []
        share = -(-(self.ready_count + self.out_count) // len(self._at_member))
        room = min(records_max, max(self._several, share))
        taken: list[Held] = []
        while room > len(taken) and (record := self._ready.pop()) is not None:
            for follower in record.key.records[: min(self._several, room - len(taken))]:
                if follower.state != HELD or follower.not_before_s > now_s:
                    break
                self._hand_out(follower, member, now_s)
                taken.append(follower)
        taken.sort(key=lambda each: each.offset)
        return taken

    def _hand_out(self, record: Held, member: Any, now_s: float) -> None:
        record.state, record.member = OUT, member
        record.deadline_s = now_s + self.lock_s
        record.key.busy += 1
        self.out_count += 1
        self._at_member[member][record.offset] = record

    def put_back(self, member: Any, records: Iterable[Held], now_s: float) -> None:
        """Take back records that were handed out to a member and not sent.

        Those that it does not have any more are passed over: it has left, or their time is over.
        """
        for record in records:
            if record.state != OUT or record.member != member:
                continue
            self._take_from(record)
            record.state, record.member = HELD, None
            record.key.busy -= 1
            if not record.is_locked:
                self._note_gone(record, now_s)
            self._ready.look_at(record.key, now_s)
            if record.is_finished:
                self._drop(record, now_s)

    def acknowledge(
        self,
        member: Any,
        batches: Sequence[AckBatch],
        now_s: float,
        on_over: Callable[[Ticket], None],
    ) -> int | None:
        """Take a member's acknowledgements of this partition: all of them, or none.

        Return None if `on_over` will be called with the outcome, else the error code at once; 0:
        nothing was left to confirm. Offsets below the window are finished, and accepted as
        brokers do.
        """
        error_code = check_batches(batches)
        if error_code:
            return error_code
        found: list[tuple[Held, int]] = []
        lowest = min(self.records, default=self.end_offset + 1)
        for first, last, types in batches:
            for offset in range(first, last + 1):
                record = self.records.get(offset)
                if record is not None and record.state == OUT and record.member == member:
                    found.append((record, types[offset - first] if len(types) > 1 else types[0]))
                elif offset > self.end_offset:
                    return ErrorCode.invalid_request
                elif offset >= lowest:
                    return ErrorCode.invalid_record_state
        decided = [(record, outcome) for record, outcome in found if outcome != RENEW]
        for record, outcome in found:
            if outcome == RENEW:
                record.deadline_s = now_s + self.lock_s
        if not decided:
            return 0
        ticket = Ticket(len(decided), on_over)
        for record, outcome in decided:
            self._decide(record, outcome, ticket, now_s)
        return None

    def expire(self, now_s: float) -> int:
        """Release records whose members' time is over; return their number."""
        over = [
            record
            for held in self._at_member.values()
            for record in held.values()
            if record.deadline_s <= now_s
        ]
        for record in over:
            self._decide(record, RELEASE, None, now_s)
        return len(over)

    def _decide(
        self,
        record: Held,
        outcome: int,
        ticket: Ticket | None,
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
            record.not_before_s = now_s + pause_s
        if self._is_to_copy(record):
            self._have_copied(record)
        else:
            self._send(record, now_s)

    def _send(self, record: Held, now_s: float) -> None:
        """Have the outcome of a record sent as soon as it is locked; or end the record."""
        if record.is_locked:
            self._unsent.append(record)
        elif record.is_finished:
            self._end(record, now_s)
        elif record.outcome == RELEASE:  # the broker has released it already, or archived it
            self._release(record, now_s)

    def _is_to_copy(self, record: Held) -> bool:
        """Return whether a dead letter is to be written before the broker learns the outcome."""
        return self._copies and not record.is_copied and self._is_last(record)

    def _is_last(self, record: Held) -> bool:
        """Return whether the record is not delivered again."""
        limit = self.delivery_limit
        return record.outcome == REJECT or (
            record.outcome == RELEASE and limit is not None and record.count >= limit
        )

    def _have_copied(self, record: Held) -> None:
        record.is_copying = True
        self.to_copy.append(record)

    def copied(self, record: Held, now_s: float) -> None:
        """Note that a dead letter of the record is written: the broker may learn its outcome."""
        record.is_copied, record.is_copying = True, False
        self._send(record, now_s)

    def _take_from(self, record: Held) -> None:
        held = self._at_member.get(record.member)
        if held is not None:  # it has not left
            held.pop(record.offset, None)
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
            if record is None:
                key = self._keys.of(point)
                record = self.records[offset] = Held(offset, key, count, now_s)
                former = key.records[0] if key.records else None
                if key.insert(record) and former is not None:
                    self._ready.unready(former)
            else:
                self._lock_again(record, count, now_s)
            record.block, record.row = block, row
            self._ready.look_at(record.key, now_s)
        if offsets:
            self.end_offset = max(self.end_offset, offsets[-1])

    def _lock_again(self, record: Held, count: int, now_s: float) -> None:
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
                self._unsent = [each for each in self._unsent if each is not record]
                self._have_copied(record)
            elif not is_unsent:
                self._unsent.append(record)

    def acquire_gap(self, first: int, last: int) -> None:
        """Take offsets that the broker has locked and that have no record."""
        self._gaps.append((first, last))
        self.end_offset = max(self.end_offset, last)

    def fetched(self, sent_s: float, highest: int | None, now_s: float) -> list[Held]:
        """Judge records without a lock by a fetch that is taken in; return the archived ones.

        The broker gives what is available lowest first. So a released record that two fetches
        have not brought, but later ones or none at all, is archived. `settle` judges all others.
        sent_s: time when the fetch was sent. highest: the last offset that it brought, None: none.
        """
        gone = self.gone.values() if self.is_settled else ()
        archived = [record for record in gone if record.strike(sent_s, highest)]
        for record in archived:
            self._finish(record, now_s)
        return archived

    def next_acks(self) -> list[AckBatch]:
        """Return outcomes for the broker, ascending; `acked` or `unsend` follows for each."""
        acks = []
        for record in self._unsent:
            record.is_sent = True
            acks.append((record.offset, record.outcome))
        gaps, self._unsent, self._gaps = self._gaps, [], []
        return runs_of(acks, gaps)

    @property
    def locked_count(self) -> int:
        """Offsets that are locked at the broker for keylane."""
        gaps = sum(last - first + 1 for first, last in self._gaps)
        return gaps + sum(record.is_locked for record in self.records.values())

    @property
    def has_acks(self) -> bool:
        """Return whether `next_acks` has any."""
        return bool(self._unsent or self._gaps)

    def acked(self, batches: Iterable[AckBatch], now_s: float) -> None:
        """Note outcomes that the broker has confirmed."""
        for record in self._records_in(batches):
            if record.state == DONE and record.is_sent:
                self._confirm(record, now_s)

    def refused(self, batches: Iterable[AckBatch], error_code: int, now_s: float) -> None:
        """Note outcomes that the broker has refused: the locks were lost. The records come again.

        error_code: for the members that have acknowledged them.
        """
        for record in self._records_in(batches):
            if record.state == DONE and record.is_sent:
                ticket, record.ticket = record.ticket, None
                self._note_gone(record, now_s)
                if ticket is not None:
                    ticket.confirm(error_code)

    def unsend(self, batches: Iterable[AckBatch]) -> None:
        """Take back outcomes that were not judged: they are sent again."""
        for first, last, types in batches:
            if types[0] == GAP:  # of members, too, which may say so of records
                offsets = range(first, last + 1)
                self._gaps += [(each, each) for each in offsets if each not in self.records]
        for record in self._records_in(batches):
            if record.state == DONE and record.is_sent:
                record.is_sent = False
                self._unsent.append(record)

    def renewals(self, now_s: float) -> list[AckBatch]:
        """Return renewals of all locks of which a third is over."""
        due_s = now_s - self.lock_s / RENEWED_PART
        due = [
            (record.offset, RENEW)
            for record in self.records.values()
            if record.is_locked and record.locked_s <= due_s and not record.is_sent
        ]
        return runs_of(due, ())

    def renewed(self, batches: Iterable[AckBatch], now_s: float) -> None:
        """Note locks that are renewed."""
        for record in self._records_in(batches):
            record.locked_s = now_s

    def lose(self, batches: Iterable[AckBatch], now_s: float) -> None:
        """Note locks that the broker does not know: these records come again."""
        for record in self._records_in(batches):
            if record.is_locked:
                self._unlock(record, now_s)
        self._unsent = [record for record in self._unsent if record.is_locked]

    def lose_all(self, now_s: float) -> None:
        """Note the end of the session at the broker, with all locks. Nothing is settled."""
        self.is_settled = False
        self._gaps, self._unsent = [], []
        for record in list(self.records.values()):
            if record.is_locked:
                self._unlock(record, now_s)

    def _unlock(self, record: Held, now_s: float) -> None:
        record.is_locked = False
        record.gone_s, record.strikes = now_s, 0
        self.gone[record.offset] = record
        if record.state == HELD:
            self._note_gone(record, now_s)
        elif record.state == DONE and record.outcome == RELEASE and not record.is_copying:
            self._release(record, now_s)

    def settle(self, now_s: float) -> list[Held]:
        """Note that every record that is not finished, up to the last one, is locked.

        Return records that had been locked before and are finished: their outcomes had arrived at
        the broker, or it has archived them.
        """
        finished = list(self.gone.values())
        for record in finished:
            self._finish(record, now_s)
        self.is_settled = True
        return finished

    def _finish(self, record: Held, now_s: float) -> None:
        """Take in that the broker has finished a record. What a member has, it keeps."""
        if record.state == OUT or record.is_copying:
            record.is_finished = True
            del self.gone[record.offset]
        else:
            self._end(record, now_s)

    def _end(self, record: Held, now_s: float) -> None:
        """End a record that the broker has finished, by what was sent or before."""
        ticket, record.ticket = record.ticket, None
        self._drop(record, now_s)
        if ticket is not None:
            ticket.confirm(0 if record.is_sent else ErrorCode.invalid_record_state)

    def _records_in(self, batches: Iterable[AckBatch]) -> list[Held]:
        get = self.records.get
        found = (get(offset) for b in batches for offset in range(b.first, b.last + 1))
        return [record for record in found if record is not None]

    # States.
    def _confirm(self, record: Held, now_s: float) -> None:
        """End a record whose outcome is the broker's; a released one waits to come again."""
        if record.outcome == RELEASE and not self._is_last(record):
            self._release(record, now_s)
        else:
            self._end(record, now_s)

    def _release(self, record: Held, now_s: float) -> None:
        ticket, record.ticket = record.ticket, None
        self._note_gone(record, now_s)
        if ticket is not None:
            ticket.confirm()

    def _note_gone(self, record: Held, now_s: float) -> None:
        """The record is HELD or DONE."""
        if record.state == HELD:
            record.key.busy += 1
            self._ready.unready(record.key.records[0])
        record.state, record.is_locked, record.is_sent = GONE, False, False
        record.gone_s, record.strikes, record.block = now_s, 0, None
        self.gone[record.offset] = record

    def _drop(self, record: Held, now_s: float) -> None:
        key = record.key
        key.remove(record)
        key.busy -= record.state != HELD
        record.state, record.is_locked = GONE, False
        del self.records[record.offset]
        self.gone.pop(record.offset, None)
        self._ready.unready(record)
        record.block = None
        if key.records:
            self._ready.look_at(key, now_s)
        else:
            self._keys.forget(key)

    def wake(self, now_s: float) -> None:
        """Make records ready whose wait after a release is over."""
        self._ready.wake(now_s)

    @property
    def next_wake_s(self) -> float | None:
        """Time when `wake` has something to do; None: nothing waits."""
        return self._ready.next_wake_s

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert self.ready_count == sum(record.is_ready for record in self.records.values())
        assert self.out_count == sum(record.state == OUT for record in self.records.values())
        for key in {id(r.key): r.key for r in self.records.values()}.values():
            offsets = [record.offset for record in key.records]
            assert offsets == sorted(set(offsets)) and offsets
            assert key.busy == sum(record.state != HELD for record in key.records)
            out = [record for record in key.records if record.state == OUT]
            assert len(out) <= self._several
            assert len({record.member for record in out}) <= 1
            assert not any(r.is_ready for r in key.records[1:])
            assert not (key.busy and key.records[0].is_ready)
            assert key.busy or key.records[0].is_ready or key.records[0].not_before_s
        unlocked = {o: r for o, r in self.records.items() if not r.is_locked}
        assert self.gone == {o: r for o, r in unlocked.items() if not r.is_finished}
        at_rest = [r for r in self.records.values() if r.state in {HELD, GONE}]
        assert all(r.is_locked == (r.state == HELD) for r in at_rest)
        assert all(r.state == DONE and r.is_locked and not r.is_sent for r in self._unsent)
        assert len(set(self._unsent)) == len(self._unsent)
        copying = [r for r in self.records.values() if r.is_copying]
        assert all(r.state == DONE and not r.is_sent and r not in self._unsent for r in copying)
