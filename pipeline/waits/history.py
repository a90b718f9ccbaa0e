"""Times of a group's commits, from what compaction has left of keylane's journal.

The journal is compacted: of each key only the newest record is sure to stay. What was written since
the last compaction is all there, one record per commit, and the time of a record is the time of the
commit. Behind a record that is gone nothing is known of *when* a position came about, only that it
had by then. So a commit is exact if the record of its state before it is there too, with no gap
in between, and else it is in doubt.

Source: docs/decisions/005, 038.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F

from keylane.errors import JournalInvalid
from keylane.keyrange.space import HASH_MAX
from keylane.offsets.records.journal import (
    RangeKey,
    StateKey,
    StepKey,
    read_key,
    read_positions,
)
from keylane.offsets.steps import read_step
from keylane.offsets.values import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXACT, LOST, INDIVIDUAL, OTHER_HASH = 0, 1, 2, 3
"""Doubts of a commit's time: none; records before it are gone; offsets were committed one by one;
lanes are by a hash that is not XXH64."""
COMMIT_SCHEMA: Final = "p int, lo bigint, hi bigint, position bigint, t_ms bigint, doubt int"
JOURNAL_COLUMNS: Final = ("offset", "t_ms", "key", "value")


class Commit(NamedTuple):
    """All offsets before `position` of a key range were committed at `t_ms`, or by then."""

    p: int
    lo: int
    hi: int
    position: int
    t_ms: int
    doubt: int


@dataclass(slots=True)
class _State:
    """Knowledge of one partition's state."""

    exists: bool = False
    """False: no record was seen, or the last one deleted it."""
    gaps: int = 0
    """Gaps of the journal up to its last record."""
    has_ranges: bool = False
    has_other_hash: bool = False


@dataclass(slots=True)
class CommitHistory:
    """Commits of one group and topic, from the records of its journal partition in log order."""

    group: str
    topic_id: uuid.UUID
    _gaps: int = 0
    _next: int = 0
    _states: dict[int, _State] = field(default_factory=dict)

    def take(self, offset: int, t_ms: int, key: bytes | None, value: bytes | None) -> list[Commit]:
        """One record of any group; the commits that it shows."""
        self._gaps += offset != self._next
        self._next = offset + 1
        try:
            found = None if key is None else read_key(key)
            if not isinstance(found, StateKey | StepKey | RangeKey):
                return []
            place = found if isinstance(found, StateKey) else found.state
            if (place.group, place.topic_id) != (self.group, self.topic_id):
                return []
            state = self._states.setdefault(place.partition, _State())
            if isinstance(found, RangeKey):
                state.has_ranges = True
                return []
            return self._positions(state, found, t_ms, value)
        except JournalInvalid:
            # A stranger's record, or damage: what stood here is not known.
            self._gaps += 1
            return []

    def _positions(
        self, state: _State, key: StateKey | StepKey, t_ms: int, value: bytes | None
    ) -> list[Commit]:
        existed, is_next = state.exists, state.gaps == self._gaps
        state.gaps = self._gaps
        if value is None:
            state.exists = state.exists and isinstance(key, StepKey)
            return []
        state.exists = True
        if isinstance(key, StepKey):
            p, intervals = key.state.partition, [*read_step(value).step.changes]
        else:
            whole = read_positions(value)
            state.has_other_hash = bool(whole.hash_tag)
            p, intervals = key.partition, [*_intervals(whole.positions)]
        rows = [(lo, hi, at.offset) for lo, hi, at in intervals if at.committed]
        if state.has_other_hash:
            last = max((at for _, _, at in rows), default=0)
            return [Commit(p, 0, HASH_MAX, last, t_ms, OTHER_HASH)]
        doubt = INDIVIDUAL if state.has_ranges else EXACT if is_next else LOST
        found = [Commit(p, lo, hi, at, t_ms, doubt) for lo, hi, at in rows]
        if not existed and doubt == EXACT:
            # All lanes began at one offset, where the group may have been without keylane; what
            # is beyond it came with this record.
            floor = min((at.offset for _, _, at in intervals), default=0)
            found += [Commit(p, lo, hi, floor, t_ms, LOST) for lo, hi, _ in rows]
        return found


def _intervals(ends: Iterable[tuple[int, Position]]) -> Iterator[tuple[int, int, Position]]:
    first = 0
    for last, position in ends:
        yield first, last, position
        first = last + 1


def journal_commits(journal: DataFrame, group: str, topic_id: uuid.UUID) -> DataFrame:
    """Commits (`COMMIT_SCHEMA`) of a group's topic from its one partition of the journal.

    `journal`: offset, t_ms, key, value; a task must see the whole partition in order, as Spark's
    Kafka source gives it without `minPartitions`. Workers decode it with keylane's own reader, a
    record per commit, so keylane has to be installed there. Adds `is_report`, false.
    """

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        history = CommitHistory(group, topic_id)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in JOURNAL_COLUMNS]
            found = [row for record in zip(*columns, strict=True) for row in history.take(*record)]
            if found:
                arrays = [pa.array(column) for column in zip(*found, strict=True)]
                arrays[0], arrays[5] = arrays[0].cast(pa.int32()), arrays[5].cast(pa.int32())
                yield pa.RecordBatch.from_arrays(arrays, list(Commit._fields))

    found = journal.select(*JOURNAL_COLUMNS).mapInArrow(decode, COMMIT_SCHEMA)
    return found.withColumn("is_report", F.lit(False))
