"""The ledger of a group under chaos: its members' reports, judged, and its stalls.

In:    members' reports, with times of one clock.  Out: breaches in words, stalls in seconds.

A member that the group has given up without its knowledge (its heartbeats met a hung process) may
still work on records that it holds, until it learns; Kafka's groups are like that without keylane
too. Such deliveries are counted as late, and are no breach; all others that a commit covers are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Reported = tuple[float, str, str, Mapping[str, Any]]
"""(monotonic seconds, member, event, its fields)."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One record at one member."""

    at_s: float
    member: str
    lane: int
    offset: int
    key: str
    number: int
    """The record's number among the key's values, from 0 without a gap."""


@dataclass(slots=True)
class Verdict:
    """Breaches in words, and events that are no breach but worth a note."""

    breaches: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """Deliveries of committed records at members that held the lane since before the commit."""
    delivered: int = 0
    repeated: int = 0
    """Deliveries of values that had been delivered before."""


@dataclass(slots=True)
class _Commit:
    offset: int
    at_s: float
    member: str


@dataclass(slots=True)
class _Books:
    since: dict[tuple[str, int], float] = field(default_factory=dict)
    """When a member was assigned a lane that it holds."""
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    """Last offset that a member was given of a lane that it holds."""
    commits: dict[int, list[_Commit]] = field(default_factory=lambda: defaultdict(list))
    """By lane, ascending by offset: the commits that took it further."""
    numbers: dict[str, int] = field(default_factory=dict)
    """By key: the highest number delivered."""
    verdict: Verdict = field(default_factory=Verdict)


def deliveries(reported: Iterable[Reported]) -> list[Delivery]:
    """Return every reported record, by time."""
    found = [
        Delivery(at_s, member, lane, offset, key, int(value.rpartition(":")[2]))
        for at_s, member, event, what in reported
        if event == "records"
        for lane, offset, key, value in what["records"]
    ]
    return sorted(found, key=lambda each: each.at_s)


def judge(reported: Sequence[Reported]) -> Verdict:
    """Nothing committed again, each key in order, each member forward only."""
    books = _Books()
    for at_s, member, event, what in sorted(reported, key=lambda each: each[0]):
        if event == "assigned":
            for lane in what["lanes"]:
                books.since[member, lane] = at_s
                books.positions.pop((member, lane), None)
        elif event in {"revoked", "lost"}:
            for lane in what["lanes"]:
                books.since.pop((member, lane), None)
        elif event == "committed":
            for lane, offset in what["offsets"].items():
                _note_commit(books.commits[int(lane)], _Commit(offset, at_s, member))
        elif event == "records":
            for lane, offset, key, value in what["records"]:
                number = int(value.rpartition(":")[2])
                _deliver(books, Delivery(at_s, member, lane, offset, key, number))
    return books.verdict


def _note_commit(commits: list[_Commit], commit: _Commit) -> None:
    if not commits or commits[-1].offset < commit.offset:
        commits.append(commit)


def _deliver(books: _Books, each: Delivery) -> None:
    verdict = books.verdict
    verdict.delivered += 1
    highest = books.numbers.get(each.key, -1)
    where = f"{each.key}:{each.number} lane {each.lane} offset {each.offset} at {each.member}"
    where = f"{each.at_s:.3f} {where}"
    if each.number > highest + 1:
        verdict.breaches.append(f"{where}: out of order, {highest} was the last before")
    verdict.repeated += each.number <= highest
    books.numbers[each.key] = max(highest, each.number)
    place = each.member, each.lane
    if books.positions.get(place, -1) >= each.offset:
        verdict.breaches.append(f"{where}: went back from {books.positions[place]}")
    books.positions[place] = each.offset
    _check_commits(books, each, where)


def _check_commits(books: _Books, each: Delivery, where: str) -> None:
    commits = books.commits.get(each.lane, [])
    if not commits or commits[-1].offset <= each.offset:
        return
    covering = next(commit for commit in commits if commit.offset > each.offset)
    said = f"{where}: {covering.offset} was committed by {covering.member} at {covering.at_s:.3f}"
    since_s = books.since.get((each.member, each.lane))
    if since_s is not None and since_s < covering.at_s and covering.member != each.member:
        books.verdict.late.append(said)
    else:
        held = "never assigned" if since_s is None else f"assigned at {since_s:.3f}"
        books.verdict.breaches.append(f"{said}, {held}")


@dataclass(frozen=True, slots=True)
class Stall:
    """Longest times without progress of a group within a window."""

    all_s: float
    """The longest time without a record at any member."""
    lane_s: float
    """The longest time without a record of one lane."""
    lane: int
    """The index of that lane."""


def stall(
    found: Sequence[tuple[float, int]], lanes: Iterable[int], first_s: float, last_s: float
) -> Stall:
    """The longest gaps in a window that begins with the event.

    found: (time, lane) of deliveries, ascending; those before the window count as its start.
    """
    gap_s, before_s = 0.0, first_s
    by_lane = dict.fromkeys(lanes, first_s)
    worst_s, worst = 0.0, -1
    for at_s, lane in found:
        if not first_s <= at_s <= last_s:
            continue
        gap_s = max(gap_s, at_s - before_s)
        lane_gap_s = at_s - by_lane.get(lane, first_s)
        if lane_gap_s > worst_s:
            worst_s, worst = lane_gap_s, lane
        before_s = by_lane[lane] = at_s
    return Stall(max(gap_s, last_s - before_s), worst_s, worst)
