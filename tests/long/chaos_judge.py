"""Compares the answers and records that a group got with its commits.

In:    the history of a cluster and of one group.  Out: breaches and notes in words, and counts.

Breaches, by kind:
  below     an OffsetFetch answer below an acknowledged commit of the lane
  passes    an answer behind records of the lane that no member has committed
  again     a record handed out though committed before its member asked for the position
  refused   a position that is in the log was answered OFFSET_OUT_OF_RANGE, and read again
  skipped   a record of the lane left out between two that one member was handed
  lost      a record of Kafka's log that no member was handed
  order     a record of a key handed out before an earlier one of that key
  lane      a record handed out as another lane's, or one that no log has held
  unasked   a record at a member that was never answered a position
  kafka     acknowledged records of a safe topic that Kafka does not have: the run is void

Notes are a client's own doing, or the same direct. A client that goes below the
position it was answered (librdkafka hands out an old queue after a revoke that meets its
ListOffsets) is `client`. Where a log was cut, or begins later, a member that reads it again by its
own reset policy is `reset`. A commit of a log that was cut stays at Kafka as it was said, and an
answer that repeats it is `kept`: the client compares epochs, or is out of range, or passes. Records
of the new log that it passes so, or by its own position in the old one, are `passed`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf

from keylane.offsets.lineage import FRESH_S
from keylane.proxy.commits import log_ends
from tests.long.chaos_history import (
    Answer,
    ClusterHistory,
    Commit,
    Cut,
    Delivery,
    Event,
    Fetched,
    GroupHistory,
    Held,
    OutOfRange,
    Place,
    Reset,
)
from tests.long.commit_floor import NO_FLOOR, CommitFloor, Floor


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was wrong, or worth a note."""

    kind: str
    text: str


@dataclass(slots=True)
class Verdict:
    """Findings, and counts of what was judged."""

    breaches: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class LaneLog:
    """The records of Kafka's final log that belong to one lane."""

    start: int = 0
    offsets: list[int] = field(default_factory=list)
    """Ascending."""
    born_s: list[float] = field(default_factory=list)
    """When each was acknowledged; inf: unknown."""

    def between(self, first: int, end: int, before_s: float = inf) -> list[int]:
        """Offsets in [first, end) that were there before a time."""
        places = range(
            bisect_left(self.offsets, max(first, self.start)), bisect_left(self.offsets, end)
        )
        return [self.offsets[n] for n in places if self.born_s[n] < before_s]


@dataclass(slots=True)
class _Tenure:
    """A member's knowledge of one lane since its last position."""

    answer: Answer | None = None
    floor: Floor = NO_FLOOR
    next_offset: int = -1
    """Behind the last record it was handed; at first what it was answered."""
    refused_at: int = -1
    """Offset of that refusal: an answer without a record moves a client on as well."""
    since_s: float = -inf
    """When it came there."""
    is_reset: bool = False
    """It asked for an end of the log since then."""
    is_refused: bool = False
    """It was answered OFFSET_OUT_OF_RANGE since then."""
    has_strayed: bool = False
    """The refused offset was before the log, where the member had gone back to by itself."""
    fetched_back: int | None = None
    """It fetched from here, below what it had been handed."""

    @property
    def position(self) -> int:
        """Return the offset that it had come to."""
        return max(self.next_offset, self.refused_at)


KNOWN_S = 1.2 * (FRESH_S + log_ends.KNOWN_S)
"""Seconds that a node may not know of a cut; clocks of some processes go slower."""
ORDER = {Answer: 0, OutOfRange: 1, Reset: 2, Fetched: 3, Held: 4, Delivery: 5, Commit: 6}
"""Order of events of one moment."""


class Judge:
    """Judges one group; `run` may be called once."""

    def __init__(self, cluster: ClusterHistory, group: GroupHistory) -> None:
        self._cluster, self._group = cluster, group
        self._cuts = {
            place: cuts for place, cuts in cluster.cuts.items() if place[0] not in self._safe
        }
        self._verdict = Verdict()
        self._logs = self._lane_logs()
        by_place: dict[Place, list[Commit]] = defaultdict(list)
        for commit in group.of(Commit):
            by_place[commit.place].append(commit)
        self._floors = {
            place: CommitFloor(
                commits,
                self._cuts.get(group.partition_of(place), ()),
                old_since_s=self._old_since_s,
            )
            for place, commits in by_place.items()
        }
        self._by_answer: dict[Answer, Floor] = {}
        self._kept: dict[Place, set[int]] = defaultdict(set)
        """Records that an answer passed with a commit of a log that was cut since."""
        self._handed: dict[tuple[str, Place], list[Delivery]] = defaultdict(list)
        for delivery in sorted(group.of(Delivery), key=lambda each: each.at_s):
            self._handed[delivery.member, delivery.place].append(delivery)
        self._fetches: dict[Place, list[Fetched]] = defaultdict(list)
        for each in sorted(group.of(Fetched), key=lambda each: each.at_s):
            self._fetches[each.place].append(each)
        self._stale_ends: dict[Place, int] = defaultdict(int)
        """Behind the last record of a log that was handed out after it was cut: it was on its way
        when that happened."""
        for handed in group.of(Delivery):
            place = group.partition_of(handed.place)
            record = cluster.logs[place].records.get(handed.offset)
            is_after = any(
                cut.end_s < handed.at_s and cut.offset <= handed.offset
                for cut in self._cuts.get(place, ())
            )
            if is_after and record not in {None, (handed.key, handed.number)}:
                end = max(self._stale_ends[handed.place], handed.offset + 1)
                self._stale_ends[handed.place] = end

    def run(self) -> Verdict:
        """Run all checks; return the verdict."""
        self._check_kafka()
        for answer in self._group.of(Answer):
            self._check_answer(answer)
        timelines: dict[tuple[str, Place], list[Event]] = defaultdict(list)
        for event in self._group.events:
            if not isinstance(event, Commit):
                timelines[event.member, event.place].append(event)
        for events in timelines.values():
            events.sort(key=lambda each: (_at_s(each), ORDER[type(each)]))
            self._check_tenures(events)
        self._check_all_delivered()
        self._check_order()
        commits = self._group.of(Commit)
        self._verdict.counts["commits"] = sum(each.is_acknowledged for each in commits)
        return self._verdict

    @property
    def _safe(self) -> frozenset[str]:
        return self._cluster.safe_topics

    def _breach(self, kind: str, text: str) -> None:
        self._verdict.breaches.append(Finding(kind, f"{self._group.group}: {text}"))

    def _note(self, kind: str, text: str) -> None:
        self._verdict.notes.append(Finding(kind, f"{self._group.group}: {text}"))

    def _lane_logs(self) -> Mapping[Place, LaneLog]:
        found: dict[Place, LaneLog] = defaultdict(LaneLog)
        born_s = self._cluster.born_s
        for (topic, partition), log in self._cluster.logs.items():
            if topic not in self._group.partitions:
                continue
            for offset, (key, _) in sorted(log.records.items()):
                place = Place(topic, self._group.lane_of(topic, partition, key))
                lane = found[place]
                lane.start = log.start
                lane.offsets.append(offset)
                lane.born_s.append(born_s.get((topic, partition, offset), inf))
        return found

    def _check_kafka(self) -> None:
        for each in self._cluster.lost:
            if each.topic in self._safe and each.topic in self._group.partitions:
                self._breach("kafka", f"{each} is acknowledged and not in Kafka's log")

    def _old_since_s(self, commit: Commit) -> float:
        """When the record before it was in the log, if that was cut since; inf: it was not.

        A member that has read of the old log commits that for a moment after the cut as well, and
        a node that does not know of the cut yet hands it out for that time. Where it has read
        records of other lanes only, it is when the member came to that offset.
        """
        handed = self._handed[commit.member, commit.place]
        last = bisect_right(handed, commit.asked_s, key=lambda each: each.at_s)
        log = self._cluster.logs[self._group.partition_of(commit.place)]
        for each in reversed(handed[:last]):
            if each.offset < commit.offset:
                if log.records.get(each.offset) != (each.key, each.number):
                    return each.at_s - KNOWN_S
                break
        came_s = (
            each.at_s
            for each in reversed(self._fetches[commit.place])
            if (each.member, each.offset) == (commit.member, commit.offset)
            and each.at_s <= commit.asked_s
        )
        return next(came_s, inf) - KNOWN_S

    # -- answers ----------------------------------------------------------------------------

    def _check_answer(self, answer: Answer) -> None:
        counts = self._verdict.counts
        counts["answers"] += 1
        floors = self._floors.get(answer.place)
        floor = floors.floor(answer) if floors else NO_FLOOR
        self._by_answer[answer] = floor
        counts["answers with a commit"] += floor.commit is not None
        if floor.offset > max(answer.offset, 0):
            self._breach("below", f"{_say(answer)}: {floor.offset} stood, {_of(floor)}")
            return
        reach = floors.reach(answer) if floors else -1
        log = self._logs.get(answer.place)
        if log is None or answer.offset <= reach:
            return
        passed = log.between(max(reach, 0), answer.offset, answer.asked_s)
        if passed:
            where = f"{len(passed)} records of the lane from {passed[0]} on"
            said = f"{_say(answer)}: no member committed beyond {reach}; {where}"
            stands = floors.stands(answer) if floors else -1
            is_kept = not log.between(max(stands, 0), answer.offset, answer.asked_s)
            (self._note if is_kept else self._breach)("kept" if is_kept else "passes", said)
            if is_kept:
                self._kept[answer.place].update(passed)

    def _note_kept(self, answer: Answer, later: Iterable[Event]) -> None:
        """What was written after the question is passed as well, until the member goes on.

        It fetches from the answer, which is of the log that was cut: Kafka answers the same.
        """
        after = (each for each in later if not isinstance(each, Held))
        first, then = next(after, None), next(after, None)
        floors, log = self._floors.get(answer.place), self._logs.get(answer.place)
        is_begun = isinstance(first, Fetched) and first.offset == answer.offset
        if not (floors and log and is_begun) or isinstance(then, OutOfRange):
            return
        until_s = inf if then is None else _at_s(then)
        reach = floors.reach(replace(answer, asked_s=until_s))
        end = min(floors.stands(answer), answer.offset)
        self._kept[answer.place].update(log.between(reach, end, until_s))

    # -- what a member was handed -----------------------------------------------------------

    def _check_tenures(self, events: Sequence[Event]) -> None:
        tenure = _Tenure()
        for number, event in enumerate(events):
            if isinstance(event, Answer):
                tenure = _Tenure(event, self._by_answer[event], event.offset, since_s=event.asked_s)
                self._note_kept(event, islice(events, number + 1, None))
            elif isinstance(event, Reset):
                tenure.is_reset = True
            elif isinstance(event, OutOfRange):
                tenure.is_refused, tenure.refused_at = True, event.offset
                tenure.has_strayed = self._has_strayed(tenure, event)
            elif isinstance(event, Fetched):
                self._check_fetch(tenure, event)
            elif isinstance(event, Delivery):
                self._check_delivery(tenure, event)
                if event.offset < tenure.floor.offset:
                    tenure.floor = NO_FLOOR  # one finding for all that follows from it
                tenure.next_offset = event.offset + 1
                tenure.since_s = event.at_s
                tenure.fetched_back = None
                tenure.is_reset = tenure.is_refused = tenure.has_strayed = False
                tenure.refused_at = -1

    def _has_strayed(self, tenure: _Tenure, event: OutOfRange) -> bool:
        """Return whether a member was refused because it had gone back behind the log's start."""
        start = self._cluster.logs[self._group.partition_of(event.place)].start
        return tenure.fetched_back == event.offset < start

    def _check_fetch(self, tenure: _Tenure, event: Fetched) -> None:
        self._verdict.counts["fetched offsets"] += event.is_first
        if event.offset < tenure.next_offset:
            tenure.fetched_back = event.offset
        if event.offset >= tenure.floor.offset or tenure.answer is None:
            return
        if (
            tenure.is_reset
            or tenure.is_refused
            or self._has_lost(event.place, tenure.next_offset, event.at_s)
        ):
            return  # judged with the first record that comes of it
        said = f"{event.at_s:.3f} {event.member} fetched {event.place} from {event.offset}"
        said = f"{said}: {tenure.floor.offset} stood, {_of(tenure.floor)}"
        if tenure.answer.offset >= tenure.floor.offset:
            self._note("client", f"{said}; it was answered {tenure.answer.offset}")
        # Else the answer itself is a breach, and has been named.

    def _check_delivery(self, tenure: _Tenure, each: Delivery) -> None:
        self._verdict.counts["delivered"] += 1
        said = f"{each.at_s:.3f} {each.key}:{each.number} {each.place} offset {each.offset}"
        said = f"{said} at {each.member}"
        is_kept = self._check_identity(each, said)
        if tenure.answer is None:
            self._breach("unasked", said)
            return
        log = self._logs.get(each.place) or LaneLog()
        if each.offset < tenure.floor.offset:
            self._check_again(tenure, each, f"{said}: {_of(tenure.floor)}")
        elif each.offset < tenure.next_offset:
            said = f"{said}: it was at {tenure.next_offset}"
            if self._has_lost(each.place, tenure.position, each.at_s):
                self._note("reset", said)
            elif (tenure.fetched_back is not None and not tenure.is_refused) or tenure.has_strayed:
                self._note("client", f"{said} and fetched from {tenure.fetched_back}")
            else:
                self._breach("refused" if tenure.is_refused else "again", said)
        elif is_kept:
            skipped = log.between(tenure.next_offset, each.offset)
            if skipped:
                said = f"{said}: left out {len(skipped)} records from {skipped[0]}"
                # What it was handed last may be of a log that was cut before that.
                is_old = skipped[-1] < self._old_end(each.place)
                is_old = is_old or self._was_cut(each.place, tenure.since_s, each.at_s)
                (self._note if is_old else self._breach)("passed" if is_old else "skipped", said)

    def _check_again(self, tenure: _Tenure, each: Delivery, said: str) -> None:
        assert tenure.answer is not None
        if tenure.answer.offset < tenure.floor.offset:
            self._breach("again", f"{said}; it was answered {tenure.answer.offset}")
        elif self._has_lost(each.place, tenure.position, each.at_s):
            self._note("reset", said)
        elif (tenure.is_refused or tenure.is_reset) and not tenure.has_strayed:
            self._breach("refused", said)
        else:
            self._note("client", f"{said}; it was answered {tenure.answer.offset}")

    def _has_lost(self, place: Place, position: int, at_s: float) -> bool:
        """Return whether the log had been cut below a position by then, or begins behind it."""
        partition = self._group.partition_of(place)
        if place.topic in self._safe:
            return False
        return position < self._cluster.logs[partition].start or any(
            cut.begin_s < at_s and cut.offset < position for cut in self._cuts.get(partition, ())
        )

    def _was_cut(self, place: Place, first_s: float, last_s: float) -> bool:
        """Return whether the log of a lane was cut between."""
        cuts = self._cuts.get(self._group.partition_of(place), ())
        return any(cut.begin_s < last_s and cut.end_s > first_s for cut in cuts)

    def _check_identity(self, each: Delivery, said: str) -> bool:
        """Return whether Kafka's final log has this record; one that none has had is a breach."""
        topic, partition = self._group.partition_of(each.place)
        log = self._cluster.logs[topic, partition]
        if self._group.lane_of(topic, partition, each.key) != each.place.lane:
            self._breach("lane", f"{said}: not a record of this lane")
        if log.records.get(each.offset) == (each.key, each.number):
            return True
        if each.offset < log.start:
            self._verdict.counts["delivered and expired"] += 1
        elif topic in self._safe:
            self._breach("lane", f"{said}: Kafka has {log.records.get(each.offset)} there")
        else:
            self._verdict.counts["delivered and cut"] += 1
        return False

    # -- the whole --------------------------------------------------------------------------

    def _check_all_delivered(self) -> None:
        handed: dict[Place, dict[int, set[tuple[str, int]]]] = defaultdict(dict)
        for each in self._group.of(Delivery):
            handed[each.place].setdefault(each.offset, set()).add((each.key, each.number))
        for place, lane in self._logs.items():
            log = self._cluster.logs[self._group.partition_of(place)]
            missing = [
                offset
                for offset in lane.offsets
                if log.records[offset] not in handed[place].get(offset, ())
            ]
            self._verdict.counts["records of the logs"] += len(lane.offsets)
            if missing:
                self._name_missing(place, missing)

    def _name_missing(self, place: Place, missing: Sequence[int]) -> None:
        """Records before what a member had read or committed of a log that was cut: as direct."""
        old_end, kept = self._old_end(place), self._kept[place]
        passed = [offset for offset in missing if offset < old_end or offset in kept]
        lost = [offset for offset in missing if offset >= old_end and offset not in kept]
        for kind, found, add in (("passed", passed, self._note), ("lost", lost, self._breach)):
            self._verdict.counts[kind] += len(found)
            if found:
                where = f"{place}: {len(found)} records, {found[0]} to {found[-1]}"
                members = [f"{each.member} at {each.offset}" for each in self._old(place)]
                add(kind, f"{where}; in a log that was cut were {members}")

    def _old(self, place: Place) -> list[Fetched]:
        """Return where members fetched in logs that were cut, beyond the cut: the last of each."""
        cuts = self._cuts.get(self._group.partition_of(place), ())
        last: dict[tuple[str, Cut], Fetched] = {}
        for each in self._fetches[place]:
            for cut in cuts:
                if self._is_of_old(each, cut):
                    last[each.member, cut] = each
        return [each for (_, cut), each in last.items() if each.offset > cut.offset]

    def _is_of_old(self, fetched: Fetched, cut: Cut) -> bool:
        """Return whether a member came there in the log that was cut.

        A node hands out what it has in memory for some time; a record of the new log ends that.
        Answers to requests from before the cut may come at any time, as from a hung broker.
        """
        if min(fetched.at_s, fetched.asked_s) < cut.end_s:
            return True
        handed = self._handed[fetched.member, fetched.place]
        log = self._cluster.logs[self._group.partition_of(fetched.place)]
        return fetched.at_s < cut.end_s + KNOWN_S and not any(
            cut.begin_s < each.at_s <= fetched.at_s
            and each.offset >= cut.offset
            and log.records.get(each.offset) == (each.key, each.number)
            for each in handed
        )

    def _old_end(self, place: Place) -> int:
        """Return how far members had come in logs that were cut; 0: none was."""
        ends = [each.offset for each in self._old(place)]
        return max([*ends, self._stale_ends[place]])

    def _check_order(self) -> None:
        """First deliveries of one key's records, as the final log has them, ascend."""
        done: dict[tuple[str, int, str], set[int]] = defaultdict(set)
        highest: dict[tuple[str, int, str], int] = {}
        deliveries = sorted(self._group.of(Delivery), key=lambda each: each.at_s)
        for each in deliveries:
            topic, partition = self._group.partition_of(each.place)
            record = self._cluster.logs[topic, partition].records.get(each.offset)
            key = topic, partition, each.key
            if record != (each.key, each.number) or each.offset in done[key]:
                continue
            done[key].add(each.offset)
            if each.offset < highest.get(key, -1):
                said = f"{each.at_s:.3f} {each.key}:{each.number} {each.place} {each.offset}"
                said = f"{said} at {each.member}, after {highest[key]}"
                is_old = each.offset < self._old_end(each.place)
                is_old = is_old or each.offset in self._kept[each.place]
                (self._note if is_old else self._breach)("passed" if is_old else "order", said)
            highest[key] = max(each.offset, highest.get(key, -1))


def judge(cluster: ClusterHistory, group: GroupHistory) -> Verdict:
    """Return the verdict on one group."""
    return Judge(cluster, group).run()


def _at_s(event: Event) -> float:
    return event.answered_s if isinstance(event, Answer | Commit) else event.at_s


def _say(answer: Answer) -> str:
    asked = f"{answer.asked_s:.3f} {answer.member} asked for {answer.place}"
    return f"{asked}, was answered {answer.offset} at {answer.answered_s:.3f}"


def _of(floor: Floor) -> str:
    commit = floor.commit
    if commit is None:
        return "never committed"
    return (
        f"{commit.offset} was committed by {commit.member} at {commit.answered_s:.3f} "
        f"(generation {commit.generation})"
    )
