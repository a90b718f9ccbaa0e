"""Sources of records, as the workers see them: `Consumer`, `ShareSource`, or a test's fake.

The optional parts are protocols of their own; a source has them or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from keylane.client.values import Committed, ConsumerRecord, TopicPartition


class SourceSettings(Protocol):
    """The part of a source's settings that the workers read."""

    @property
    def group_id(self) -> str | None:
        """The group, named in dead letters."""

    @property
    def max_poll_interval_ms(self) -> int:
        """Longest time between two polls before the group takes the partitions away."""


class PlainSettings(NamedTuple):
    """The same as values, for sources without settings of another kind."""

    group_id: str | None
    max_poll_interval_ms: int = 300_000
    """Kafka's default."""


class Source(Protocol):
    """Gives records and takes what is done; all of it on one event loop.

    `mark_done()` without a record is called once before the first poll: from then on only marked
    records count as done.
    """

    @property
    def settings(self) -> SourceSettings:
        """Return the settings of the source."""

    async def getmany(
        self,
        *partitions: TopicPartition,
        timeout_ms: int = 0,
        max_records: int | None = None,
        max_partition_records: int | None = None,
    ) -> Iterable[ConsumerRecord] | Mapping[TopicPartition, Sequence[ConsumerRecord]]:
        """Return records, ascending in each partition; none after `timeout_ms` without any.

        max_partition_records: of each partition, so that more keys are there to be worked on.
        """

    def mark_done(self, *records: ConsumerRecord) -> None:
        """Take records as done; the next commit covers them. Those of lost partitions it drops."""

    async def commit(self) -> None:
        """Send all that is done and not yet committed."""

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that records come from."""

    def paused(self) -> Collection[TopicPartition]:
        """Return those of them that give no records now."""

    def pause(self, *partitions: TopicPartition) -> None:
        """Let polls return no records of these."""

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`."""

    def to_be_revoked(self) -> frozenset[TopicPartition]:
        """Return what the next poll gives up, unless it is delayed."""

    def lost(self) -> frozenset[TopicPartition]:
        """Return what was lost since the last poll began; others may own it."""

    def delay_revoke(self, partitions: Collection[TopicPartition], /) -> bool:
        """Keep these for one more poll; False: some of them are lost."""


@runtime_checkable
class TakesOutcomes(Protocol):
    """A source that takes failures as well: a share group."""

    def reject(self, record: ConsumerRecord) -> None:
        """The record's work has failed for good; it does not come again."""

    def release(self, *records: ConsumerRecord) -> None:
        """These records were not worked; they come again, at any member."""


@runtime_checkable
class Measured(Protocol):
    """A source with figures; `records_behind` is the count up to the ends of the logs."""

    def metrics(self) -> Mapping[str, float]:
        """Return the figures by name."""


@runtime_checkable
class KnowsLag(Protocol):
    """A source that knows how far behind each partition is."""

    def current_lag(self, part: TopicPartition, /) -> int | None:
        """Return the offsets up to the end of the log; None: they are not known."""


class Seekable(Source, Protocol):
    """A source that can be set back: what exactly-once needs."""

    async def committed(self, partition: TopicPartition, /) -> Committed | None:
        """Return the group's progress; None: it has none."""

    def seek(self, partition: TopicPartition, offset: int, /) -> None:
        """Let the next poll begin at `offset`."""


def lags_of(source: Source) -> dict[TopicPartition, int | None]:
    """Return how far behind each partition is; nothing where the source does not know."""
    if not isinstance(source, KnowsLag):
        return {}
    return {part: source.current_lag(part) for part in source.assignment()}


def records_of(
    polled: Iterable[ConsumerRecord] | Mapping[TopicPartition, Sequence[ConsumerRecord]],
) -> Iterable[ConsumerRecord]:
    """Return what a poll gave, record by record."""
    if isinstance(polled, Mapping):
        return (record for records in polled.values() for record in records)
    return polled
