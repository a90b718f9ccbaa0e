"""Naive twin of `keylane.share.dispatcher`: every answer is found by a walk over all records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kio.schema.errors import ErrorCode

from keylane.share.held import ARCHIVED_AFTER_S, LONG, NO_KEY, STRIKES_MAX
from keylane.share.ready import PASSED_MAX
from keylane.wire.share import GAP, REJECT, RELEASE, RENEW, AckBatch

Place = Literal["held", "out", "copying", "unsent", "sent", "gone"]
"""At keylane; at a member; decided: to be copied first, to be sent, sent; to come again."""


@dataclass
class Vow:
    """A member's acknowledgement, until all of its offsets are confirmed."""

    open: set[int]
    on_over: Callable[[int], None]
    code: int = 0


@dataclass
class Fate:
    """One record, and what is known of it."""

    offset: int
    point: int
    count: int
    locked_s: float
    place: Place = "held"
    is_locked: bool = True
    is_finished: bool = False
    """The broker has finished it, while a member or a copy is waited for."""
    is_free: bool = False
    """Its member has finished it, and its key goes on."""
    was_copied: bool = False
    member: Any = None
    deadline_s: float = 0.0
    not_before_s: float = 0.0
    outcome: int = 0
    gone_s: float = 0.0
    strikes: int = 0

    @property
    def is_missed(self) -> bool:
        """Return whether the broker has to give it again before anything can be said of it."""
        return not self.is_locked and not self.is_finished

    @property
    def key(self) -> Any:
        """Return what it may not overtake, or be overtaken by."""
        return (self.offset, self.point) if self.point == NO_KEY else self.point


@dataclass
class NaiveDispatcher:
    """The window of one partition as a dict of offsets."""

    several: int
    pause_s: Callable[[int], float]
    copies: bool
    frees_early: bool = False
    lock_s: float = 30.0
    last_delivery: int | None = None
    fates: dict[int, Fate] = field(default_factory=dict)
    members: set[Any] = field(default_factory=set)
    vows: list[Vow] = field(default_factory=list)
    gaps: set[int] = field(default_factory=set)
    is_settled: bool = False
    end_offset: int = -1
    quiet_until_s: float = 0.0

    # Records in order.
    def all(self, *places: Place) -> list[Fate]:
        """Return records in some places, ascending."""
        found = [fate for _, fate in sorted(self.fates.items())]
        return [fate for fate in found if not places or fate.place in places]

    def keys(self) -> list[list[Fate]]:
        """Return the records of each key, the key with the lowest record first."""
        found: dict[Any, list[Fate]] = {}
        for fate in self.all():
            if not fate.is_free:
                found.setdefault(fate.key, []).append(fate)
        return list(found.values())

    def at_rest(self) -> list[list[Fate]]:
        """Return the keys of which keylane has all records."""
        return [mine for mine in self.keys() if all(fate.place == "held" for fate in mine)]

    def ready(self, now_s: float) -> list[list[Fate]]:
        """Return the keys at rest whose first record need not wait."""
        return [mine for mine in self.at_rest() if mine[0].not_before_s <= now_s]

    def waits(self, now_s: float) -> list[float]:
        """Return the times when more keys are ready, if nothing else happens."""
        return [mine[0].not_before_s for mine in self.at_rest() if mine[0].not_before_s > now_s]

    # Members.
    def join(self, member: Any) -> None:
        self.members.add(member)

    def leave(self, member: Any, now_s: float) -> None:
        self.members.discard(member)
        for fate in self.all("out"):
            if fate.member == member:
                self.decide(fate, RELEASE, now_s, pause_s=0.0)

    def take(self, member: Any, records_max: int, now_s: float) -> list[int]:
        ready, taken = self.ready(now_s), list[Fate]()
        if not self.is_settled or not ready:
            return []
        out = self.all("out")
        share = (len(ready) + len(out) + len(self.members) - 1) // len(self.members)
        has = sum(fate.member == member for fate in out)
        room = min(records_max, max(share - has, self.several))
        turns, passed = 2 * len(self.fates) // len(self.members), 0
        if room > 0:
            ready = self.longest_first(ready, turns)
        for mine in ready:
            if len(taken) < room and taken and len(mine) * (len(taken) + 1) > turns:
                passed += 1
            if passed == PASSED_MAX:
                break
            if taken and len(mine) * (len(taken) + 1) > turns:
                continue
            room = min(room, max(self.several, turns // len(mine)))
            for fate in mine[: self.several]:
                if len(taken) >= room or fate.not_before_s > now_s:
                    break
                fate.place, fate.member, fate.deadline_s = "out", member, now_s + self.lock_s
                taken.append(fate)
        return sorted(fate.offset for fate in taken)

    def longest_first(self, ready: list[list[Fate]], turns: int) -> list[list[Fate]]:
        """Put the key that bounds all others before those with lower records, if it is ready."""
        keys = [mine for mine in self.keys() if len(mine) >= LONG]
        keys.sort(key=len, reverse=True)  # of equal ones the one with the lowest record stays first
        if keys and keys[0] in ready and 2 * len(keys[0]) > turns:
            ready = [keys[0], *(mine for mine in ready if mine is not keys[0])]
        return ready

    def put_back(self, member: Any, offsets: Iterable[int], now_s: float) -> None:
        for offset in offsets:
            fate = self.fates.get(offset)
            if fate is None or fate.place != "out" or fate.member != member:
                continue
            fate.place, fate.member = "held", None
            if fate.is_finished:
                del self.fates[offset]
            elif not fate.is_locked:
                self.miss(fate, now_s)

    def acknowledge(
        self,
        member: Any,
        batches: Sequence[AckBatch],
        now_s: float,
        on_over: Callable[[int], None],
    ) -> int | None:
        decided: dict[int, int] = {}
        lowest = min(self.fates, default=self.end_offset + 1)
        last_offset = -1
        for first, last, types in batches:
            if first <= last_offset or last < first or len(types) not in {1, last - first + 1}:
                return ErrorCode.invalid_request
            if any(kind > RENEW for kind in types):
                return ErrorCode.invalid_request
            last_offset = last
        for first, last, types in batches:
            for offset in range(first, last + 1):
                fate = self.fates.get(offset)
                if fate is not None and fate.place == "out" and fate.member == member:
                    decided[offset] = types[(offset - first) % len(types)]
                elif offset > self.end_offset:
                    return ErrorCode.invalid_request
                elif offset >= lowest:
                    return ErrorCode.invalid_record_state
        final = {offset: kind for offset, kind in decided.items() if kind != RENEW}
        for offset in set(decided) - set(final):
            self.fates[offset].deadline_s = now_s + self.lock_s
        if final:
            self.vows.append(Vow(set(final), on_over))
        for offset, kind in final.items():
            self.decide(self.fates[offset], kind, now_s)
        return None if final else 0

    def expire(self, now_s: float) -> int:
        over = [fate for fate in self.all("out") if fate.deadline_s <= now_s]
        for fate in over:
            self.decide(fate, RELEASE, now_s)
        return len(over)

    def decide(self, fate: Fate, outcome: int, now_s: float, pause_s: float | None = None) -> None:
        """A record leaves its member."""
        fate.place, fate.outcome, fate.member = "unsent", outcome, None
        if outcome == RELEASE:
            pause_s = self.pause_s(fate.count) if pause_s is None else pause_s
            fate.not_before_s = now_s + min(pause_s, self.lock_s)
        if self.copies and not fate.was_copied and self.is_last(fate):
            fate.place = "copying"
        else:
            self.look_at_unlocked(fate, now_s)

    def is_last(self, fate: Fate) -> bool:
        """Return whether a decided record is a dead letter."""
        limit = self.last_delivery
        is_over = limit is not None and fate.count >= limit
        return fate.outcome == REJECT or (fate.outcome == RELEASE and is_over)

    def copied(self, offset: int, now_s: float) -> None:
        fate = self.fates[offset]
        fate.was_copied, fate.place, fate.outcome = True, "unsent", REJECT
        self.look_at_unlocked(fate, now_s)

    def look_at_unlocked(self, fate: Fate, now_s: float) -> None:
        """A record is decided: that may be the end of it, if it is not locked."""
        fate.is_free = self.frees_early and fate.is_locked and fate.outcome != RELEASE
        if fate.is_finished:
            self.end(fate, ErrorCode.invalid_record_state)
        elif not fate.is_locked and fate.outcome == RELEASE:
            self.release(fate, now_s)

    # The broker.
    def acquire(
        self, offsets: Sequence[int], points: Sequence[int], count: int, now_s: float
    ) -> None:
        for offset, point in zip(offsets, points, strict=True):
            self.end_offset = max(self.end_offset, offset)
            fate = self.fates.get(offset)
            if fate is None:
                fate = self.fates[offset] = Fate(offset, point, count, now_s)
                fate.not_before_s = self.quiet_until_s if count > 1 else 0.0
                continue
            fate.is_locked, fate.is_finished, fate.strikes = True, False, 0
            fate.locked_s, fate.count = now_s, count
            if fate.place == "gone":
                fate.place = "held"
            elif fate.place in {"unsent", "sent"}:
                is_copy = self.copies and not fate.was_copied and self.is_last(fate)
                fate.place = "copying" if is_copy else "unsent"

    def acquire_gap(self, first: int, last: int) -> None:
        self.gaps |= set(range(first, last + 1))
        self.end_offset = max(self.end_offset, last)

    def fetched(self, sent_s: float, highest: int | None, now_s: float) -> list[int]:
        archived = []
        for fate in self.all():
            is_late = sent_s >= fate.gone_s + ARCHIVED_AFTER_S
            is_passed = highest is None or highest > fate.offset
            if self.is_settled and fate.is_missed and is_late and is_passed:
                fate.strikes += 1
                if fate.strikes == STRIKES_MAX:
                    archived.append(fate.offset)
                    self.finish(fate)
        return archived

    def be_quiet(self, until_s: float) -> None:
        self.quiet_until_s = until_s
        for fate in self.all("held"):
            if fate.count > 1:
                fate.not_before_s = max(fate.not_before_s, until_s)

    def settle(self, now_s: float) -> list[int]:
        finished = [fate for fate in self.all() if fate.is_missed]
        for fate in finished:
            self.finish(fate)
        self.is_settled = True
        return [fate.offset for fate in finished]

    def finish(self, fate: Fate) -> None:
        """The broker has finished a record that it had given before."""
        if fate.place in {"out", "copying"}:
            fate.is_finished = True
        else:
            self.end(fate, 0 if fate.place == "sent" else ErrorCode.invalid_record_state)

    def next_acks(self) -> dict[int, int]:
        found = dict.fromkeys(self.gaps, GAP)
        self.gaps = set()
        for fate in self.all("unsent"):
            if fate.is_locked:
                found[fate.offset] = fate.outcome
                fate.place = "sent"
        return found

    def acked(self, batches: Iterable[AckBatch], now_s: float) -> None:
        for fate in self.sent_in(batches):
            self.confirm(fate, now_s)

    def refused(self, batches: Iterable[AckBatch], code: int, now_s: float) -> None:
        for fate in self.sent_in(batches):
            if fate.is_free:
                self.unlock(fate, now_s)
            else:
                self.miss(fate, now_s)
                self.answer(fate, code)

    def unsend(self, batches: Iterable[AckBatch]) -> None:
        known = set(self.fates)
        for fate in self.sent_in(batches):
            fate.place = "unsent"
        for first, last, types in batches:
            if types[0] == GAP:
                self.gaps |= set(range(first, last + 1)) - known

    def renewals(self, now_s: float) -> set[int]:
        return {
            fate.offset
            for fate in self.all("held", "out", "copying", "unsent")
            if fate.is_locked and fate.locked_s <= now_s - self.lock_s / 3
        }

    def renewed(self, batches: Iterable[AckBatch], now_s: float) -> None:
        for fate in self.within(batches):
            fate.locked_s = now_s

    def lose(self, batches: Iterable[AckBatch], now_s: float) -> None:
        for fate in self.within(batches):
            if fate.is_locked:
                self.unlock(fate, now_s)

    def lose_all(self, now_s: float) -> None:
        self.is_settled = False
        self.gaps = set()
        for fate in self.all():
            if fate.is_locked:
                self.unlock(fate, now_s)

    def unlock(self, fate: Fate, now_s: float) -> None:
        """A lock is over at the broker."""
        fate.is_locked, fate.gone_s, fate.strikes = False, now_s, 0
        if fate.place == "held":
            self.miss(fate, now_s)
        elif fate.place in {"unsent", "sent"} and fate.outcome == RELEASE:
            self.release(fate, now_s)

    # The end of an outcome.
    def confirm(self, fate: Fate, now_s: float) -> None:
        """The broker has taken an outcome."""
        if fate.outcome == RELEASE:
            self.release(fate, now_s)
        else:
            self.end(fate, 0)

    def release(self, fate: Fate, now_s: float) -> None:
        """A member's release has come true."""
        self.miss(fate, now_s)
        self.answer(fate, 0)

    def miss(self, fate: Fate, now_s: float) -> None:
        """A record is nowhere, and comes again."""
        fate.place, fate.is_locked, fate.gone_s, fate.strikes = "gone", False, now_s, 0

    def end(self, fate: Fate, code: int) -> None:
        """A record is finished."""
        del self.fates[fate.offset]
        self.answer(fate, code)

    def answer(self, fate: Fate, code: int) -> None:
        """The member that has acknowledged the record is answered when all others are over, too."""
        for vow in [vow for vow in self.vows if fate.offset in vow.open]:
            vow.open.discard(fate.offset)
            vow.code = vow.code or code
            if not vow.open:
                self.vows.remove(vow)
                vow.on_over(vow.code)

    def within(self, batches: Iterable[AckBatch]) -> list[Fate]:
        """Return the records of some ranges."""
        wanted = {offset for first, last, _ in batches for offset in range(first, last + 1)}
        return [fate for fate in self.all() if fate.offset in wanted]

    def sent_in(self, batches: Iterable[AckBatch]) -> list[Fate]:
        """Return the records of some ranges of which an outcome is under way."""
        return [fate for fate in self.within(batches) if fate.place == "sent"]

    @property
    def locked_count(self) -> int:
        return len(self.gaps) + sum(fate.is_locked for fate in self.all())
