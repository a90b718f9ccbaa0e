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
finished below the highest one, nothing is handed out: a lower record of the same key may be missing.

Time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.share.acks import check_batches, runs_of
from keylane.share.held import DONE, GONE, HELD, NO_KEY, OUT, Held, KeyQueue, Ticket
from keylane.wire.share import GAP, REJECT, RELEASE, RENEW, AckBatch

STRIKES_MAX: Final = 2
"""Fetches that bring later records, or none, before a released record counts as archived."""
ARCHIVED_AFTER_S: Final = 2.0
"""Such a fetch is sent this time after the release, or later: a broker does not give a record while
the end of its lock is being written."""
RENEWED_PART: Final = 3
"""A lock is renewed when this part of its duration is over."""


def no_pause(_count: int) -> float:
    """Return 0: a released record may be handed out as soon as it has come again."""
    return 0.0


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
        self.last_delivery: int | None = None
        """Delivery after which a record that is released gets a dead letter; None: the limit."""
        self.records: dict[int, Held] = {}
        self._keys: dict[int, KeyQueue] = {}
        self._ready: list[int] = []
        self._delayed: list[tuple[float, int]] = []
        self._at_member: dict[Any, dict[int, Held]] = {}
        """By member, also of those that have nothing."""
        self._unsent: list[Held] = []
        self._gaps: list[tuple[int, int]] = []
        self.to_copy: list[Held] = []
        self.gone: dict[int, Held] = {}
        self.ready_count = self.out_count = 0
        self.handed_out = self.redelivered = 0
        """Records handed out so far; and those of them that had been delivered before."""
        self.is_settled = False
        self.end_offset = -1
        """Highest offset that was acquired."""

    # Members.
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

    def may_take(self, now_s: float) -> bool:
        """Return whether any record can be handed out."""
        if not self.is_settled:
            return False
        self._wake_delayed(now_s)
        return self.ready_count > 0

    def take(self, member: Any, records_max: int, now_s: float) -> list[Held]:
        """Hand out records to a member that takes part; ascending, `records_max` at most.

        No member gets more keys than its share of those that can be handed out and of what is
        handed out.
        """
        self._wake_delayed(now_s)
        if not self.is_settled or not self.ready_count:
            return []
        share = max(1, -(-(self.ready_count + self.out_count) // len(self._at_member)))
        taken: list[Held] = []
        while share > 0 and records_max > len(taken) and self._ready:
            record = self.records.get(heappop(self._ready))
            if record is None or not record.is_ready:
                continue  # an entry of before
            record.is_ready = False
            self.ready_count -= 1
            share -= 1
            for follower in record.key.records[: min(self._several, records_max - len(taken))]:
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
        self.handed_out += 1
        self.redelivered += record.count > 1
        self._at_member[member][record.offset] = record

    def put_back(self, records: Iterable[Held], now_s: float) -> None:
        """Take back records that were handed out and not sent."""
        for record in records:
            self._take_from(record)
            record.state, record.member = HELD, None
            record.key.busy -= 1
            if not record.is_locked:
                self._note_gone(record, now_s)
            self._look_at(record.key, now_s)

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
        for first, last, types in batches:
            for offset in range(first, last + 1):
                record = self.records.get(offset)
                if record is not None and record.state == OUT and record.member == member:
                    found.append((record, types[offset - first] if len(types) > 1 else types[0]))
                elif error_code := self._error_of(offset, record):
                    return error_code
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

    def _error_of(self, offset: int, record: Held | None) -> int:
        """Return the code for an offset that the member does not hold; 0: it is finished."""
        if offset > self.end_offset:
            return ErrorCode.invalid_request
        if record is None and offset < min(self.records, default=self.end_offset + 1):
            return 0
        return ErrorCode.invalid_record_state

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
            record.not_before_s = now_s + min(pause_s, self.lock_s)
        if self._is_to_copy(record):
            self.to_copy.append(record)
        elif record.is_locked:
            self._unsent.append(record)
        elif outcome == RELEASE:  # the broker has released it already
            self._confirm(record, now_s)

    def _is_to_copy(self, record: Held) -> bool:
        """Return whether a dead letter is to be written before the broker learns the outcome."""
        return self._copies and not record.is_copied and self._is_last(record)

    def _is_last(self, record: Held) -> bool:
        """Return whether the record is not delivered again."""
        last = self.last_delivery or self.delivery_limit
        return record.outcome == REJECT or (
            record.outcome == RELEASE and last is not None and record.count >= last
        )

    def copied(self, record: Held) -> None:
        """Note that a dead letter of the record is written: the broker may learn its end."""
        record.is_copied = True
        if record.state != DONE:
            return
        record.outcome = REJECT  # whatever limit the broker has by now
        if record.is_locked:
            self._unsent.append(record)

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
                key = self._key_of(point)
                record = self.records[offset] = Held(offset, key, count, now_s)
                former = key.records[0] if key.records else None
                if key.insert(record) and former is not None:
                    self._unready(former)
            else:
                self._lock_again(record, count, now_s)
            record.block, record.row = block, row
            self._look_at(record.key, now_s)
        if offsets:
            self.end_offset = max(self.end_offset, offsets[-1])

    def _key_of(self, point: int) -> KeyQueue:
        if point == NO_KEY:
            return KeyQueue(point)
        key = self._keys.get(point)
        if key is None:
            key = self._keys[point] = KeyQueue(point)
        return key

    def _lock_again(self, record: Held, count: int, now_s: float) -> None:
        is_unsent = record.is_locked and not record.is_sent
        record.is_locked = True
        record.count, record.locked_s, record.strikes = count, now_s, 0
        if record.state == GONE:
            del self.gone[record.offset]
            record.state = HELD
            record.key.busy -= 1
        elif record.state == DONE:
            record.is_sent = False
            if not is_unsent and not self._is_to_copy(record):
                self._unsent.append(record)

    def acquire_gap(self, first: int, last: int) -> None:
        """Take offsets that the broker has locked and that have no record."""
        self._gaps.append((first, last))
        self.end_offset = max(self.end_offset, last)

    def fetched(self, sent_s: float, highest: int | None, now_s: float) -> list[Held]:
        """Judge released records by a fetch that is taken in; return those that are archived.

        The broker gives what is available lowest first. So a released record that two fetches
        have not brought, but later ones or none at all, is archived.
        sent_s: time when the fetch was sent. highest: the last offset that it brought, None: none.
        """
        archived = []
        for record in self.gone.values():
            is_late = sent_s >= record.gone_s + ARCHIVED_AFTER_S
            if is_late and (highest is None or highest > record.offset):
                record.strikes += 1
                if record.strikes >= STRIKES_MAX:
                    archived.append(record)
        for record in archived:
            self._drop(record, now_s)
        return archived

    def next_acks(self) -> list[AckBatch]:
        """Return outcomes for the broker, ascending; `acked` or `unsend` follows for each."""
        acks = []
        for record in self._unsent:
            if record.state == DONE and not record.is_sent:  # else it was lost meanwhile
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
            if types[0] == GAP:
                self._gaps.append((first, last))
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

    def lose_all(self, now_s: float) -> None:
        """Note the end of the session at the broker, with all locks. Nothing is settled."""
        self.is_settled = False
        self._gaps, self._unsent = [], []
        for record in list(self.records.values()):
            if record.is_locked:
                self._unlock(record, now_s)

    def _unlock(self, record: Held, now_s: float) -> None:
        record.is_locked = False
        if record.state == HELD:
            self._unready(record)
            self._note_gone(record, now_s)
        elif record.state == DONE and record.outcome == RELEASE and not self._is_to_copy(record):
            self._confirm(record, now_s)

    def settle(self, now_s: float) -> list[Held]:
        """Note that every record that is not finished, up to the last one, is locked.

        Return records that had been locked before and are finished: their outcomes had arrived at
        the broker, or it has archived them.
        """
        finished = [record for record in self.records.values() if not record.is_locked]
        for record in finished:
            if record.state == OUT:
                self._take_from(record)
            ticket, record.ticket = record.ticket, None
            self._drop(record, now_s)
            if ticket is not None:
                ticket.confirm(0 if record.is_sent else ErrorCode.invalid_record_state)
        self.is_settled = True
        return finished

    def _records_in(self, batches: Iterable[AckBatch]) -> list[Held]:
        get = self.records.get
        found = (get(offset) for b in batches for offset in range(b.first, b.last + 1))
        return [record for record in found if record is not None]

    # States.
    def _confirm(self, record: Held, now_s: float) -> None:
        """End a record whose outcome is the broker's; a released one waits to come again."""
        ticket, record.ticket = record.ticket, None
        limit = self.delivery_limit
        if record.outcome == RELEASE and (limit is None or record.count < limit):
            self._note_gone(record, now_s)
        else:
            self._drop(record, now_s)
        if ticket is not None:
            ticket.confirm()

    def _note_gone(self, record: Held, now_s: float) -> None:
        """The record is HELD or DONE."""
        if record.state == HELD:
            record.key.busy += 1
        record.state, record.is_locked, record.is_sent = GONE, False, False
        record.gone_s, record.strikes, record.block = now_s, 0, None
        self.gone[record.offset] = record

    def _drop(self, record: Held, now_s: float) -> None:
        key = record.key
        key.remove(record)
        key.busy -= record.state != HELD
        del self.records[record.offset]
        self.gone.pop(record.offset, None)
        self._unready(record)
        record.block = None
        if key.records:
            self._look_at(key, now_s)
        elif key.point != NO_KEY:
            del self._keys[key.point]

    def _look_at(self, key: KeyQueue, now_s: float) -> None:
        """Make the first record of a key ready if it may be handed out."""
        head = key.records[0]
        if key.busy or head.is_ready:
            return
        if self._copies and self.last_delivery is not None and head.count > self.last_delivery:
            # A crash has used up its deliveries. The next one would end it unseen.
            head.state, head.outcome = DONE, REJECT
            key.busy += 1
            self.to_copy.append(head)
            return
        if head.not_before_s > now_s:
            heappush(self._delayed, (head.not_before_s, head.offset))
            return
        head.is_ready = True
        self.ready_count += 1
        heappush(self._ready, head.offset)

    def _unready(self, record: Held) -> None:
        self.ready_count -= record.is_ready
        record.is_ready = False

    def _wake_delayed(self, now_s: float) -> None:
        while self._delayed and self._delayed[0][0] <= now_s:
            record = self.records.get(heappop(self._delayed)[1])
            if record is not None:
                self._look_at(record.key, now_s)

    @property
    def next_wake_s(self) -> float | None:
        """Time when a record that waits after a release may be handed out; None: there is none."""
        return self._delayed[0][0] if self._delayed else None

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
        assert self.gone == {o: r for o, r in self.records.items() if r.state == GONE}
        assert all(not record.is_locked for record in self.gone.values())
