"""Judgement of share groups in the order of keys, by docs/guarantees.md and docs/share-groups.md.

What is true of a record is the broker's word: when its end was written, and how often it was
acquired. What members did is in their diaries.

*Order*: work on a record begins after all lower ones of its key are finished, but where the lock
of the member had ended when it began.
*One member*: works on a key do not overlap, except beyond the end of a member's lock, session or
process, and beyond the moment at which another process of a node took the partition over.
*Nothing is lost*: each end has its reason in a diary, or in the limit of deliveries.
*Confirmed*: an outcome that was answered without an error is written. What is finished is not given
to a member that asks later.
Of a group with `confirm: received` a record is finished when its member has said so, until the
process that has taken it down ends, or another one takes the partition over.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from keylane.wire.share import ACCEPT, REJECT, RELEASE
from tests.simulation.share_store import ACKNOWLEDGED, ARCHIVED, Ledger, Place, ShareStore

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, Partition
    from tests.simulation.scenario import SharePlan
    from tests.simulation.share_member import ShareMember
    from tests.simulation.share_work import Work
    from tests.simulation.world import World

SHOWN_MAX = 5
NO_ANSWER = -1
ON_ITS_WAY_S = 0.05
CALM_S = 8.0
"""Time after a trouble in which locks may end at brokers, besides their own duration."""
FIGHT_S = 4.0
"""A partition does not go to and fro twice in such a time: nodes' sessions are longer."""
Key = tuple[Place, str]


class ShareBook:
    """Records of share groups' topics, and what the judge has to know of the run's faults."""

    def __init__(self, world: World, cluster: Cluster, plans: Sequence[SharePlan]) -> None:
        self._world, self._cluster, self._plans = world, cluster, plans
        self._number = 0
        self.records: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        """Keys by partition and offset."""
        self.ends: list[float] = []
        """Times at which processes of nodes have ended, or connections of members."""
        self.has_lost_answers = False
        """Members may have been given records that they do not know of."""
        self.troubles: list[tuple[float, float]] = []
        """Times of faults that may keep a node from renewing locks."""

    # As a judgement for the producers.
    def next_number(self) -> int:
        self._number += 1
        return self._number

    def wrote(self, partition: Partition, offset: int, key: str, _number: int) -> None:
        self.records[partition.topic, partition.index][offset] = key

    def aborted(self, numbers: Sequence[int]) -> None:
        """Share groups read what is not committed, and what is aborted."""

    # For the stage.
    def unfinished(self, ledger: Ledger) -> list[str]:
        """Return records without an end."""
        found = []
        for plan in self._plans:
            for index in range(plan.partitions):
                place = plan.name, plan.topic, index
                left = [
                    offset
                    for offset in self.records[plan.topic, index]
                    if (place, offset) not in ledger.finished
                ]
                if left:
                    found.append(f"stuck: {place}: {len(left)} records from {min(left)} on")
        return found

    def note_end(self) -> None:
        """A process of a node, or members' connections, have ended."""
        self.ends.append(self._world.now_s)

    def note_trouble(self, seconds: float) -> None:
        now_s = self._world.now_s
        self.troubles.append((now_s, now_s + seconds))

    def is_troubled(self, from_s: float, until_s: float) -> bool:
        """Return whether a fault was at work in a time, or shortly before."""
        return any(a <= until_s and from_s <= b + CALM_S for a, b in self.troubles)

    def has_end(self, from_s: float, until_s: float) -> bool:
        return any(from_s <= each <= until_s for each in self.ends)


class _Judge:
    def __init__(self, plan: SharePlan, works: Sequence[Work], store: ShareStore, book: ShareBook):
        self._plan, self._ledger, self._book = plan, store.ledger, book
        self._store = store
        self._by_key: dict[Key, list[Work]] = defaultdict(list)
        self._by_record: dict[tuple[Place, int], list[Work]] = defaultdict(list)
        # A member that begins when its lock is over does as one that is still at work then.
        self._begun = [each for each in works if each.start_s < min(each.lock_end_s, each.lost_s)]
        for work in works:
            place = plan.name, plan.topic, work.partition
            self._by_key[place, work.key].append(work)
            self._by_record[place, work.offset].append(work)

    def _end_s(self, place: Place, offset: int) -> float:
        found = self._ledger.finished.get((place, offset))
        return inf if found is None else found[0]

    def _said_s(self, place: Place, offset: int) -> float:
        """Return the time when a member has finished a record, where that is enough."""
        works = self._by_record[place, offset] if self._plan.is_received else ()
        said = [each for each in works if each.outcome in (ACCEPT, REJECT)]
        return min((each.ack_s for each in said if each.code in (0, None, NO_ANSWER)), default=inf)

    def order(self) -> Iterator[str]:
        """Work that began before a lower record of the key was finished."""
        for work in self._begun:
            place = self._plan.name, self._plan.topic, work.partition
            for offset, key in self._book.records[place[1:]].items():
                if offset >= work.offset or key != work.key:
                    continue
                ended_s = min(self._end_s(place, offset), self._said_s(place, offset))
                if ended_s > work.start_s:
                    yield (
                        f"order: {place}: {work.key}: {work.member} begins {work.offset} at"
                        f" {work.start_s:.3f}, and {offset} ends at {ended_s:.3f}"
                    )
                    break

    def hands(self) -> Iterator[str]:
        """Keys at two members at once."""
        for (place, key), works in self._by_key.items():
            begun = sorted(
                (each for each in works if each.start_s < min(each.lock_end_s, each.lost_s)),
                key=lambda each: each.start_s,
            )
            for number, first in enumerate(begun):
                for second in begun[number + 1 :]:
                    at_s = second.start_s
                    if at_s >= min(first.end_s, first.lost_s, first.lock_end_s):
                        break
                    if second.member == first.member:
                        continue
                    if self._is_taken(first, at_s) or self._is_taken(second, at_s):
                        continue
                    yield (
                        f"hands: {place}: {key}: {first.offset} at {first.member} from"
                        f" {first.start_s:.3f}, {second.offset} at {second.member} from {at_s:.3f}"
                    )

    def _is_taken(self, work: Work, at_s: float) -> bool:
        """Return whether the member may have lost its record before, and not know it."""
        if self._book.has_end(work.asked_s, at_s) or work.lost_s <= at_s + ON_ITS_WAY_S:
            return True
        if work.lost_s < inf and self._book.is_troubled(work.asked_s, at_s):
            return True  # the word of it was late
        place = self._plan.name, self._plan.topic, work.partition
        hosts = [host for when, host in self._ledger.opened[place] if when <= at_s]
        since = [host for when, host in self._ledger.opened[place] if work.asked_s < when <= at_s]
        before = hosts[: len(hosts) - len(since)]
        return any(host != before[-1] for host in since) if before else bool(since)

    def ends(self) -> Iterator[str]:
        """Ends without a reason, and outcomes that were answered and are not written."""
        for (place, offset), (ended_s, state, count) in self._ledger.finished.items():
            if place[0] != self._plan.name or offset not in self._book.records[place[1:]]:
                continue
            works = self._by_record[place, offset]
            wanted = ACCEPT if state == ACKNOWLEDGED else REJECT
            if any(each.outcome == wanted and each.ack_s <= ended_s for each in works):
                continue
            if (place, offset) in self._ledger.gaps:
                yield f"lost: {place}: {offset} was acknowledged as a gap"
            elif state == ACKNOWLEDGED:
                yield f"lost: {place}: {offset} is accepted by no member"
            elif count < self._plan.deliveries:
                yield f"lost: {place}: {offset} is archived after {count} deliveries"

    def answers(self) -> Iterator[str]:
        for (place, offset), works in self._by_record.items():
            ended_s = self._end_s(place, offset)
            for work in works:
                is_final = work.outcome in (ACCEPT, REJECT)
                is_written = not self._plan.is_received
                if is_final and work.code == 0 and ended_s > work.answered_s and is_written:
                    yield f"unwritten: {place}: {offset} of {work.member}, at {work.answered_s:.3f}"
                _, state, count = self._ledger.finished.get((place, offset), (inf, 0, 0))
                # One whose deliveries are used up by locks that ended unseen may be given to one
                # more member, which does no harm.
                is_used_up = state == ARCHIVED and count >= self._plan.deliveries
                if work.asked_s > ended_s and not is_used_up:
                    yield f"again: {place}: {offset} to {work.member} at {work.asked_s:.3f}"
                if is_final and work.code == 0 and not is_written:
                    yield from self._given_again(work, works)

    def _given_again(self, first: Work, works: Iterable[Work]) -> Iterator[str]:
        """A record that a process has taken down as finished, and has handed out later."""
        for work in works:
            is_later = work.asked_s > first.answered_s
            if is_later and not self._is_dropped(first, work.given_s):
                yield f"again: {first.partition}: {work.offset} to {work.member}, answered before"

    def _is_dropped(self, work: Work, at_s: float) -> bool:
        """Return whether a node may have lost what a member has said, or has lost its lease."""
        opened = self._ledger.opened[self._plan.name, self._plan.topic, work.partition]
        is_opened = any(work.ack_s < when <= at_s for when, _ in opened)
        is_lost = is_opened and self._book.is_troubled(work.ack_s, at_s)
        return is_lost or self._is_taken(work, at_s)

    def late(self) -> Iterator[str]:
        """Outcomes that count although the record had gone to another member."""
        for (place, offset), works in self._by_record.items():
            for first in works:
                is_final = first.outcome in (ACCEPT, REJECT)
                ended_s = self._end_s(place, offset)
                if not is_final or first.code != 0 or ended_s <= first.ack_s:
                    continue
                if any(
                    each.outcome in (ACCEPT, REJECT)
                    and each.ack_s <= min(first.answered_s, ended_s)
                    for each in works
                    if each.member != first.member
                ):
                    continue  # finished on its way; behind the start offset nothing is refused
                if any(
                    each.member != first.member
                    and each.count > first.count
                    and each.given_s < first.ack_s
                    for each in works
                ):
                    yield f"late: {place}: {offset} by {first.member} at {first.ack_s:.3f}"

    def counts(self) -> Iterator[str]:
        """Deliveries that nothing explains, and locks that have ended at the broker in calm."""
        for (place, offset), times in self._ledger.acquired.items():
            if place[0] != self._plan.name:
                continue
            works = self._by_record[place, offset]
            back = sum(
                each.outcome == RELEASE
                or each.lost_s < inf
                or each.code != 0
                or each.end_s > each.lock_end_s
                or each.answered_s > each.lock_end_s
                for each in works
            )
            if self._book.has_lost_answers:
                break
            # A session that is opened releases all, and the last record of a group without a state.
            opens = len(self._ledger.opened[place])
            if len(times) > 1 + back + opens + self._timeouts(place, offset):
                yield f"counts: {place}: {offset} was acquired {len(times)} times: {times}"
        for at_s, place, offset in self._ledger.timeouts:
            from_s = at_s - self._plan.lock_s
            if place[0] == self._plan.name and not self._book.is_troubled(from_s, at_s):
                yield f"lock: {place}: that of {offset} ends at {at_s:.3f}"

    def _timeouts(self, place: Place, offset: int) -> int:
        return sum(each[1:] == (place, offset) for each in self._ledger.timeouts)

    def opens(self) -> Iterator[str]:
        """Sessions of keylane that are opened without a reason."""
        for place, opened in self._ledger.opened.items():
            if place[0] != self._plan.name:
                continue
            for (first_s, _), (second_s, _) in pairwise(opened):
                if not self._book.is_troubled(first_s, second_s):
                    yield f"sessions: {place}: opened again at {second_s:.3f}, without a reason"
            for four in zip(opened, opened[1:], opened[2:], opened[3:], strict=False):
                hosts = [host for _, host in four]
                is_fight = hosts[0] != hosts[1] and hosts[:2] == hosts[2:]
                if is_fight and self._is_without_reason(four[0][0], four[3][0]):
                    yield f"sessions: {place}: {hosts[:2]} fence each other at {four[3][0]:.3f}"

    def _is_without_reason(self, from_s: float, until_s: float) -> bool:
        """Return whether a partition went to and fro though no two nodes have ended for that."""
        ends = sum(from_s - FIGHT_S <= each <= until_s for each in self._book.ends)
        return until_s - from_s < FIGHT_S and ends < 2


def judge_shares(
    plans: Iterable[SharePlan], members: Sequence[ShareMember], store: ShareStore, book: ShareBook
) -> tuple[list[str], dict[str, int]]:
    """Return breaches, and counts."""
    breaches = book.unfinished(store.ledger)
    counts = Counter[str]()
    for plan in plans:
        works = [work for each in members if each.plan is plan for work in each.works]
        judge = _Judge(plan, works, store, book)
        for check in (
            judge.order, judge.hands, judge.ends, judge.answers, judge.late, judge.counts,
            judge.opens,
        ):  # fmt: skip
            breaches += list(check())[:SHOWN_MAX]
        counts["works"] += len(works)
        counts["again"] += sum(work.count > 1 for work in works)
    counts["records"] = sum(map(len, book.records.values()))
    counts["finished"] = len(store.ledger.finished)
    counts["sessions"] = sum(map(len, store.ledger.opened.values()))
    counts["archived"] = sum(
        count >= store.times_of(place[0]).deliveries and state != ACKNOWLEDGED
        for (place, _), (_, state, count) in store.ledger.finished.items()
    )
    return breaches, counts
