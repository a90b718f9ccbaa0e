"""Facts about a topic and a group, as two looks at the brokers some seconds apart give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Offsets at one moment, by partition."""

    at_s: float
    """By a clock that only grows."""
    ends: Mapping[int, int]
    """High watermarks."""
    committed: Mapping[int, int]
    """Of the group; a partition that is missing has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group at the topic."""

    name: str
    member_count: int | None
    """Of all its topics; None: the brokers do not say."""
    lag: int
    consumed_per_s: float
    """By its commits."""
    behind_count: int
    """Partitions that have lag at both looks."""
    behind_per_s: float
    """Records that the group consumes from these each second."""
    committed_count: int
    """Partitions in which it has committed anything."""

    @property
    def work_s(self) -> float | None:
        """Time that a record takes, if members that lag are taken for busy; None: none lags."""
        busy = min(self.behind_count, self.member_count or self.behind_count)
        if not busy or self.behind_per_s <= 0:
            return None
        return busy / self.behind_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as the brokers describe it."""

    topic: str
    partition_count: int
    replication: int
    """Of the partition that has the fewest replicas."""
    out_of_sync: int
    """Partitions with replicas that are behind."""
    is_compacted: bool | None
    """None: the brokers do not say, for want of a right."""
    offsets_kept: int
    """Between the start and the end of the log."""
    produced_per_s: float
    """By the two looks."""
    produced_mean_per_s: float | None
    """By the timestamps of the sample; None: these say nothing."""
    looked_s: float
    """Time between the two looks."""

    @property
    def usual_per_s(self) -> float:
        """The rate to plan for: of now, or of the sample's time where nothing comes now."""
        return self.produced_per_s or self.produced_mean_per_s or 0.0


def produced_per_s(first: Look, second: Look) -> float:
    """Return the records per second that came between two looks."""
    span_s = second.at_s - first.at_s
    grown = sum(max(0, end - first.ends.get(part, end)) for part, end in second.ends.items())
    return grown / span_s if span_s > 0 else 0.0


def find_group(name: str, member_count: int | None, first: Look, second: Look) -> GroupFacts:
    """Return what two looks say of a group. Offsets count for records: see `density`."""
    span_s = max(second.at_s - first.at_s, 1e-9)
    read = {
        part: max(0, at - first.committed[part])
        for part, at in second.committed.items()
        if part in first.committed
    }
    behind = [
        part
        for part in read
        if second.ends.get(part, 0) > second.committed[part]
        and first.ends.get(part, 0) > first.committed[part]
    ]
    lag = sum(max(0, second.ends.get(part, at) - at) for part, at in second.committed.items())
    return GroupFacts(
        name=name,
        member_count=member_count,
        lag=lag,
        consumed_per_s=sum(read.values()) / span_s,
        behind_count=len(behind),
        behind_per_s=sum(read[part] for part in behind) / span_s,
        committed_count=len(second.committed),
    )
