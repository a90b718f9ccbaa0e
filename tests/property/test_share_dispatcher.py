"""Random histories of a share group in key order: brokers that forget, members that are late.

The dispatcher is driven as `proxy.share.partition` does it, and answers as its naive twin does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from kio.schema.errors import ErrorCode

from keylane.share.acks import halves_of
from keylane.share.held import NO_KEY
from keylane.share.ready import no_pause
from keylane.share.states import OUT
from keylane.wire.share import ACCEPT, GAP, REJECT, RELEASE, RENEW, AckBatch
from tests.reference.dispatcher_pair import DispatcherPair
from tests.reference.share_broker import ShareBroker, State

MEMBERS = ("a", "b", "c")
LOCK_LOST = (ErrorCode.invalid_record_state, ErrorCode.invalid_request)
LIMIT_KNOWN = 5
TAKEOVER_PAUSE_S = 4.0
WRITE_S = 1.5
"""Longest time of a write for which no answer waits; below `ARCHIVED_AFTER_S`."""
points = st.sampled_from([0, 0, 1, 2, NO_KEY, None])
kinds = st.sampled_from([ACCEPT, ACCEPT, RELEASE, REJECT, RENEW, GAP])
members = st.sampled_from(MEMBERS)
write_times = st.sampled_from([0.0, 0.5, WRITE_S])
writes = st.lists(write_times, min_size=2, max_size=2)
faults = st.sampled_from(["", "", "", "busy", "cut before", "cut after"])
indexes = st.integers(0, 20)


def longer_pause(count: int) -> float:
    """Return 1, 2, 4 and so on seconds."""
    return float(2 ** (count - 1))


class ShareHistory(RuleBasedStateMachine):
    """One partition, keylane's session, three members and a clock."""

    @initialize(
        several=st.sampled_from([1, 3]),
        is_paused=st.booleans(),
        copies=st.booleans(),
        limit=st.sampled_from([2, LIMIT_KNOWN]),
        is_known=st.booleans(),
        is_early=st.booleans(),
    )
    def begin(self, several: int, limit: int, **options: bool) -> None:
        """Settings of the group, and records that are there before."""
        self.now_s = 100.0
        self.broker = ShareBroker(limit)
        self.copies = options["copies"]
        self._new_pair = partial(
            DispatcherPair,
            several_per_key=several,
            pause_s=longer_pause if options["is_paused"] else no_pause,
            copies_rejected=options["copies"],
            frees_early=options["is_early"],
            last_delivery=limit if options["is_known"] else None,
        )
        self.pair = self._new_pair()
        self.is_open = self.acks_go_apart = False
        self.holdings: dict[str, dict[int, float]] = {}
        """Of members, what they have and until when."""
        self.tickets: list[int] = []
        self.answered: list[int] = []
        self.copied: set[int] = set()
        self.freed: set[int] = set()
        """Offsets that members have finished, and of which the broker may not know it yet."""
        self.handed: dict[tuple[str, int], object] = {}
        self.had_before: set[int] = set()
        """Offsets that a process had acquired which was killed."""
        self.quiet_until_s = 0.0
        self.is_quiet_due = False
        self.broker.produce([0, 1, 0, NO_KEY, None, 0])
        self._join("a")
        self.open_session([0.0])
        self.settle()

    # The log, and time.
    @rule(new=st.lists(points, min_size=1, max_size=6))
    def produce(self, new: list[int | None]) -> None:
        if len(self.broker.log) < 40:
            self.broker.produce(new)

    @rule(passed_s=st.sampled_from([0.1, 1.0, 3.0, 11.0, 31.0]), write_s=write_times)
    def pass_time(self, passed_s: float, write_s: float) -> None:
        self.now_s += passed_s
        self.broker.expire(self.now_s, self.now_s + write_s)

    # Members.
    @rule(member=members, may_leave=st.booleans())
    def come_or_go(self, member: str, *, may_leave: bool) -> None:
        if may_leave and member in self.holdings:
            self.pair.leave(member, self.now_s)
            del self.holdings[member]
        else:
            self._join(member)

    def _join(self, member: str) -> None:
        self.pair.join(member)
        self.holdings.setdefault(member, {})

    @precondition(lambda self: self.holdings)
    @rule(at=indexes, records_max=st.integers(0, 6), kept=indexes)
    def take(self, at: int, records_max: int, kept: int) -> None:
        """A member is handed out records, and the last ones are put back if it takes fewer."""
        member = sorted(self.holdings)[at % len(self.holdings)]
        taken = self.pair.take(member, records_max, self.now_s)
        self._judge_hand_out(member, [record.offset for record in taken])
        assert all(record.block is not None for record in taken)
        self.pair.put_back(member, taken[kept:], self.now_s)
        self.handed |= {(member, record.offset): record for record in taken}
        end_s = self.now_s + self.pair.real.lock_s
        self.holdings[member] |= {record.offset: end_s for record in taken[:kept]}

    def _judge_hand_out(self, member: str, offsets: list[int]) -> None:
        log, several = self.broker.log, self.pair.twin.several
        for offset in offsets:
            entry = log[offset]
            assert not entry.outcomes & {ACCEPT, REJECT, GAP}, "its end was confirmed"
            assert offset not in self.freed, "its member has finished it"
            assert offset not in self.had_before or self.now_s >= self.quiet_until_s
            if entry.point in {NO_KEY, None}:
                assert entry.point == NO_KEY
                continue
            mine = {each for each in offsets if log[each].point == entry.point}
            assert len(mine) <= several
            for other in range(len(log)):
                if log[other].point != entry.point:
                    continue
                holders = [one for one, held in self.holdings.items() if other in held]
                assert not holders, f"{other} is at {holders} while {member} gets {offset}"
                is_over = self.broker.is_finished(other, self.now_s) or other in self.freed
                assert other > offset or other in mine or is_over, f"{other} before {offset}"

    @precondition(lambda self: self.handed)
    @rule(at=indexes)
    def give_back_late(self, at: int) -> None:
        """An answer was not sent: its member may have other records now, or have left."""
        (member, offset), record = sorted(self.handed.items())[at % len(self.handed)]
        self.pair.put_back(member, [record], self.now_s)
        self.holdings.get(member, {}).pop(offset, None)

    @precondition(lambda self: any(self.holdings.values()))
    @rule(at=indexes, length=st.integers(1, 3), kind=kinds, data=st.data())
    def acknowledge(self, at: int, length: int, kind: int, data: st.DataObject) -> None:
        """One record or a few, of one member; a type for all or for each."""
        held = sorted((o, m) for m, offsets in self.holdings.items() for o in offsets)
        _, member = held[at % len(held)]
        mine = [offset for offset, holder in held if holder == member]
        start = data.draw(st.integers(0, len(mine) - 1))
        chosen = mine[start : start + length]
        each = dict.fromkeys(chosen, kind)
        if data.draw(st.booleans()):
            each = {offset: data.draw(kinds) for offset in chosen}
        self._send_acks(member, each)

    def _send_acks(self, member: str, kinds_of: dict[int, int]) -> None:
        first, last = min(kinds_of), max(kinds_of)
        batches = [AckBatch(o, o, bytes((kind,))) for o, kind in kinds_of.items()]
        if len(kinds_of) == last - first + 1:
            batches = [AckBatch(first, last, bytes(kinds_of.values()))]
        number = len(self.tickets) + 1
        final = {offset: kind for offset, kind in kinds_of.items() if kind != RENEW}
        over = partial(self._ticket_over, number, final)
        code = self.pair.acknowledge(member, batches, self.now_s, over)
        assert code == (None if final else 0)
        if code is None:
            self.tickets.append(number)
        self._note_freed(final)
        for offset, kind in kinds_of.items():
            self.holdings[member].pop(offset)
            if kind == RENEW:
                self.holdings[member][offset] = self.now_s + self.pair.real.lock_s

    def _note_freed(self, offsets: Iterable[int]) -> None:
        fates = self.pair.twin.fates
        self.freed.update(each for each in offsets if each in fates and fates[each].is_free)

    def _ticket_over(self, number: int, kinds_of: dict[int, int], code: int) -> None:
        assert number not in self.answered, "a member is answered once"
        self.answered.append(number)
        finals = [offset for offset, kind in kinds_of.items() if kind != RELEASE]
        assert code or all(self.broker.is_finished(each, self.now_s) for each in finals)

    @rule(member=members, offset=st.integers(0, 50), size=st.integers(1, 3), kind=kinds)
    def acknowledge_anything(self, member: str, offset: int, size: int, kind: int) -> None:
        """Offsets that the member does not have are refused, with those that it has."""
        mine = self.holdings.get(member, {})
        wanted = range(offset, offset + size)
        if all(each in mine for each in wanted):
            return
        end, lowest = self.pair.real.end_offset, min(self.pair.real.records, default=None)
        batch = AckBatch(wanted[0], wanted[-1], bytes((kind,)))
        number, before = len(self.tickets) + 1, dict(self.pair.real.records)
        known = {each: kind for each in wanted if each in mine}
        over = partial(self._ticket_over, number, known)
        code = self.pair.acknowledge(member, [batch], self.now_s, over)
        if code is None:  # the others are finished
            assert known and kind != RENEW
            self._note_freed(known)
            self.tickets.append(number)
            for each in known:
                del mine[each]
            return
        if code and all(each > end for each in wanted):
            assert code == ErrorCode.invalid_request
        if code:
            assert self.pair.real.records == before
            assert all(before[each].state == OUT for each in mine)
        elif kind != RENEW:
            assert lowest is None or all(each < lowest for each in wanted)

    def _copy(self) -> None:
        copied = self.pair.copied(self.now_s)
        self.copied.update(copied)
        self._note_freed(copied)

    # The session.
    @precondition(lambda self: not self.is_open)
    @rule(writes_s=writes)
    def open_session(self, writes_s: Sequence[float]) -> None:
        """The former session's records are released when this one is open."""
        self.broker.end_session(self.now_s, writes_s)
        self.is_open = True

    @precondition(lambda self: self.is_open)
    @rule(writes_s=writes, is_leader_new=st.booleans(), is_back=st.booleans())
    def lose_session(
        self, writes_s: Sequence[float], *, is_leader_new: bool, is_back: bool
    ) -> None:
        """The connection is lost; or the leader, or broker, is another one."""
        self.is_open = False
        if is_leader_new:
            self.broker.change_leader(self.now_s)
            # It knows of deliveries that were written only, and the count is keylane's only sign.
            self.had_before = {o for o in self.had_before if self.broker.log[o].count}
        self.broker.end_session(self.now_s, writes_s)
        self.pair.lose_all(self.now_s)
        if is_back:
            self.open_session(writes_s)
            self.now_s += 0.1
            self.settle()

    @rule(writes_s=writes, wanted=st.integers(1, 6), is_quiet=st.booleans())
    def restart(self, writes_s: Sequence[float], wanted: int, *, is_quiet: bool) -> None:
        """keylane is killed; the next process begins with nothing, while fetches pass over some."""
        self.quiet_until_s, self.is_quiet_due = 0.0, is_quiet
        self.had_before = {o for o, entry in enumerate(self.broker.log) if entry.count}
        if self.is_open:
            self.broker.end_session(self.now_s, writes_s)
        self.pair = self._new_pair()
        self.holdings, self.handed, self.freed = {"a": {}}, {}, set()
        self.answered = list(self.tickets)  # those members are not answered any more
        self.pair.join("a")
        self.is_open = True
        self._fetch(wanted, [], "")
        self.settle()

    @precondition(lambda self: self.is_open and not self.pair.real.is_settled)
    @rule()
    def settle(self) -> None:
        """All that is not finished up to the last one is locked: hand-outs may begin."""
        self._fetch(30, [], "")
        locked = {o for o, e in enumerate(self.broker.log) if e.state is State.ACQUIRED}
        end = self.pair.real.end_offset
        wanted = {o for o in self.broker.unfinished(self.now_s) if o <= end or end < 0}
        known = {each.offset for each in self.pair.real.records.values() if each.is_locked}
        if wanted <= locked and wanted <= known | self.pair.twin.gaps:
            assert self.pair.real.locked_count >= len(wanted)
            if self.is_quiet_due:
                self.is_quiet_due = False
                self.quiet_until_s = self.now_s + TAKEOVER_PAUSE_S
                self.pair.be_quiet(self.quiet_until_s, self.now_s)
            for offset in self.pair.settle(self.now_s):
                assert self.broker.is_finished(offset, self.now_s)

    @precondition(lambda self: self.is_open and self.pair.real.is_settled)
    @rule(wanted=st.integers(0, 12), fault=faults, writes_s=writes, is_due=st.booleans())
    def serve(self, wanted: int, fault: str, writes_s: Sequence[float], *, is_due: bool) -> None:
        """One turn of the partition's task; at times, dead letters and renewals."""
        if is_due:
            self._copy()
        self._expire()
        due = self.pair.renewals(self.now_s) if is_due else []
        if due:
            self._renew(due)
        acks = self.pair.next_acks() if self.pair.real.has_acks else []
        if wanted and not (acks and self.acks_go_apart):
            self._fetch(wanted, acks, fault, writes_s)
        elif acks:
            self.acks_go_apart = False
            self._judge(acks, self._send(acks, fault, writes_s))

    def _expire(self) -> None:
        over = {m: {o for o, s in h.items() if s <= self.now_s} for m, h in self.holdings.items()}
        assert self.pair.expire(self.now_s) == sum(map(len, over.values()))
        for member, offsets in over.items():
            for offset in offsets:
                del self.holdings[member][offset]

    def _renew(self, due: list[AckBatch]) -> None:
        code = self.broker.acknowledge(due, self.now_s)
        if code == 0:
            self.pair.renewed(due, self.now_s)
            return
        lower, upper = halves_of(due)
        if not lower:
            self.pair.lose(upper, self.now_s)
            return
        self._renew(lower)
        self._renew(upper)

    def _send(
        self, acks: list[AckBatch], fault: str, writes_s: Sequence[float] = (0.0,)
    ) -> int | None:
        """Return the broker's code; None: the session is over."""
        self._judge_copies(acks)
        code = int(ErrorCode.coordinator_not_available)
        if fault in {"", "cut after"}:
            code = self.broker.acknowledge(acks, self.now_s)
        if not fault.startswith("cut"):
            return code
        self.lose_session(writes_s, is_leader_new=False, is_back=False)
        return None

    def _judge_copies(self, acks: list[AckBatch]) -> None:
        """A record that does not come again is copied before the broker learns of it."""
        limit = self.pair.real.last_delivery
        for batch in acks if self.copies else []:
            for offset in range(batch.first, batch.last + 1):
                entry, kind = self.broker.log[offset], batch.types[0]
                is_last = kind == RELEASE and limit is not None and entry.count >= limit
                assert kind != REJECT or offset in self.copied
                assert not is_last or offset in self.copied

    def _judge(self, acks: list[AckBatch], code: int | None) -> None:
        if code == 0:
            self.pair.acked(acks, self.now_s)
        elif code in LOCK_LOST:
            lower, upper = halves_of(acks)
            if not lower:
                self.pair.refused(upper, ErrorCode.invalid_record_state, self.now_s)
                return
            for half in (lower, upper):
                self._judge(half, self._send(half, ""))
        elif code is not None:
            self.pair.unsend(acks)

    def _fetch(
        self, wanted: int, acks: list[AckBatch], fault: str, writes_s: Sequence[float] = (0.0,)
    ) -> None:
        """Fetch; outcomes come first. What is refused is sent again by itself, after the fetch."""
        sent_s = self.now_s
        code: int | None = 0
        if acks:
            code = self._send(acks, "" if fault == "cut after" else fault, writes_s)
            if code is None:
                return
        found = self.broker.fetch(wanted, self.now_s) if fault != "cut before" else []
        if fault.startswith("cut"):
            self.lose_session(writes_s, is_leader_new=False, is_back=False)
            return
        if code:
            self.pair.unsend(acks)
            self.acks_go_apart = True
        else:
            self.pair.acked(acks, self.now_s)
        for offset, entry in found:
            if offset > max(0, self.pair.real.end_offset + 1):
                self.pair.unsettle()  # its release may be under way: what is between comes later
            if entry.point is None:
                self.pair.acquire_gap(offset)
            else:
                self.pair.acquire(offset, entry.point, entry.count, self.now_s)
        highest = found[-1][0] if found else None
        for offset in self.pair.fetched(sent_s, highest, self.now_s):
            assert self.broker.is_finished(offset, self.now_s)

    # What holds at any time.
    @invariant()
    def alike(self) -> None:
        """The twin agrees, and members have what is at members."""
        if hasattr(self, "pair"):
            self.pair.check(self.now_s)
            out = {(r.member, o) for o, r in self.pair.real.records.items() if r.state == OUT}
            assert out == {(m, o) for m, held in self.holdings.items() for o in held}

    def teardown(self) -> None:
        """Members that accept everything get everything that is not finished."""
        if not hasattr(self, "pair"):
            return
        self._join("a")
        for _ in range(200):
            if not self.broker.unfinished(self.now_s) and not self.pair.real.records:
                break
            self.now_s += 2.5
            if not self.is_open:
                self.open_session([0.0])
            elif not self.pair.real.is_settled:
                self.settle()
            else:
                self.serve(30, "", [0.0], is_due=True)
                self.serve(0, "", [0.0], is_due=True)
                self.take(0, 100, 100)
            for member, held in list(self.holdings.items()):
                if held:
                    self._send_acks(member, dict.fromkeys(sorted(held), ACCEPT))
            self.alike()
        assert not self.broker.unfinished(self.now_s)
        assert not self.pair.real.records and not self.pair.twin.fates
        assert sorted(self.answered) == self.tickets
        for entry in self.broker.log:
            is_over = entry.count >= self.broker.delivery_limit
            assert entry.outcomes & {ACCEPT, REJECT, GAP} or is_over


TestShareHistory = ShareHistory.TestCase
TestShareHistory.settings = settings(stateful_step_count=40)
