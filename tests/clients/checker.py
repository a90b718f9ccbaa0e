"""What members have seen, against Kafka's own log. Naive: no part of keylane has a say in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.clients.members import Commit
from tests.integration.harness import Sighting

Place = tuple[int, int]
"""Partition and offset at the broker."""
Log = Mapping[Place, tuple[str, str]]
"""Keys and values."""
Assignments = Mapping[tuple[str, int], Sequence[float]]
"""When a member was given a lane, ascending."""
POLL_S: Final = 30.0


def read_log(bootstrap: str, topic: str, ends: Sequence[int]) -> Log:
    """Read a topic at the broker, up to the ends of its partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "log-reader"})
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(len(ends))])
    log: dict[Place, tuple[str, str]] = {}
    while len(log) < sum(ends):
        message = consumer.poll(POLL_S)
        assert message is not None, f"the broker has {sum(ends)} records, {len(log)} came"
        assert message.error() is None, message.error()
        partition, offset = message.partition(), message.offset()
        key, value = message.key(), message.value()
        assert (
            partition is not None and offset is not None and key is not None and value is not None
        )
        log[partition, offset] = key.decode(), value.decode()
    consumer.close()
    return log


@dataclass(frozen=True, slots=True)
class Verdict:
    """Findings; all but the counts are empty where each promise was kept."""

    records: int
    deliveries: int
    lost: list[Place] = field(default_factory=list)
    """Records of the log that no member has seen."""
    altered: list[Sighting] = field(default_factory=list)
    """What is not in the log at that place, with that key and value."""
    out_of_order: list[Sighting] = field(default_factory=list)
    """First sightings of records behind a later record of their key."""
    steps_back: list[tuple[str, int]] = field(default_factory=list)
    """Members and lanes that began, or went back, more often than the lane was given to them."""
    again: list[Sighting] = field(default_factory=list)
    """Records with a confirmed commit from before their lane was given to the member."""

    @property
    def is_clean(self) -> bool:
        """Return whether nothing was found."""
        return not (self.lost or self.altered or self.out_of_order or self.steps_back or self.again)

    def __str__(self) -> str:
        return (
            f"{self.records} records, {self.deliveries} deliveries, lost {self.lost[:5]}, "
            f"altered {self.altered[:5]}, out of order {self.out_of_order[:5]}, "
            f"steps back {self.steps_back[:5]}, {len(self.again)} again after a commit "
            f"{Counter(each.member for each in self.again)} {self.again[:5]}"
        )


def judge(
    log: Log,
    sightings: Sequence[Sighting],
    commits: Sequence[Commit],
    assignments: Assignments,
    *,
    partitions: int,
) -> Verdict:
    """Judge a run whose lane n is of the partition n % partitions.

    Each time that a member is given a lane it begins at the latest commit. kafka-go commits what it
    had before the assignment after it, too, and then begins before that.
    """
    by_time = sorted(sightings, key=lambda each: each.at_s)
    found = {(each.lane % partitions, each.offset) for each in sightings}
    return Verdict(
        records=len(log),
        deliveries=len(sightings),
        lost=sorted(log.keys() - found),
        altered=[
            each
            for each in sightings
            if log.get((each.lane % partitions, each.offset)) != (each.key, each.value)
        ],
        out_of_order=list(_out_of_order(by_time)),
        steps_back=list(_steps_back(by_time, assignments)),
        again=list(_again(by_time, commits, assignments)),
    )


def _out_of_order(by_time: Iterable[Sighting]) -> Iterable[Sighting]:
    last: dict[tuple[str | None, int], int] = {}
    known: set[tuple[int, int]] = set()
    for each in by_time:
        if (each.lane, each.offset) in known:
            continue
        known.add((each.lane, each.offset))
        if each.offset < last.get((each.key, each.lane), -1):
            yield each
        last[each.key, each.lane] = each.offset


def _steps_back(by_time: Iterable[Sighting], assignments: Assignments) -> Iterable[tuple[str, int]]:
    last: dict[tuple[str, int], int] = {}
    begun: Counter[tuple[str, int]] = Counter()
    for each in by_time:
        owner = each.member, each.lane
        begun[owner] += each.offset <= last.get(owner, each.offset)
        last[owner] = each.offset
    return [owner for owner, count in begun.items() if count > len(assignments.get(owner, ()))]


def _again(
    by_time: Iterable[Sighting], commits: Iterable[Commit], assignments: Assignments
) -> Iterable[Sighting]:
    starts: dict[tuple[str, int, float], int] = {}
    for (member, lane), times in assignments.items():
        for at_s in times:
            before = (each.offset for each in commits if each.lane == lane and each.at_s < at_s)
            starts[member, lane, at_s] = max(before, default=0)
    for each in by_time:
        given = [t for t in assignments.get((each.member, each.lane), ()) if t <= each.at_s]
        if given and each.offset < starts[each.member, each.lane, given[-1]]:
            yield each
