"""Records as a consumer gets them: lists that make their records when they are looked at.

The columns `values`, `keys`, `offsets` cost no record at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, overload

from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.garbage import collector_paused
from keylane.kernel import status as s
from keylane.kernel.fetched import FetchedRecords

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NO_HEADERS: Final = b"\x00"
_new_record: Final = partial(tuple.__new__, ConsumerRecord)
"""Makes a record of eight values; the class itself takes three times as long."""


class RecordList(Sequence[ConsumerRecord]):
    """Consecutive records of one partition. It keeps the bytes of the answer that they came in.

    An iteration makes one record after the other, each time anew. A record by its index makes all
    of the list at once, and keeps them.
    """

    __slots__ = ("_fields", "_made", "_start", "_stop", "partition", "topic")

    def __init__(self, part: TopicPartition, fields: FetchedRecords, start: int, stop: int) -> None:
        self.topic: str = part.topic
        self.partition: int = part.partition
        self._fields, self._start, self._stop = fields, start, stop
        self._made: list[ConsumerRecord] | None = None

    def __len__(self) -> int:
        return self._stop - self._start

    def __repr__(self) -> str:
        return f"<{len(self)} records of {self.topic}-{self.partition}>"

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ConsumerRecord]: ...

    def __getitem__(self, index: int | slice) -> ConsumerRecord | Sequence[ConsumerRecord]:
        return self._records()[index]

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self._each() if self._made is None else iter(self._made)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(n,) int64, ascending; read-only in meaning: it is a view of the answer's columns."""
        return self._fields.longs[s.FIELD_OFFSET, self._start : self._stop]

    @property
    def timestamps_ms(self) -> NDArray[np.int64]:
        """(n,) int64, since 1970; -1 where there is none."""
        return self._fields.longs[s.FIELD_TIMESTAMP, self._start : self._stop]

    @property
    def keys(self) -> list[bytes | None]:
        """The key of each record, None for null."""
        return self._column(s.PLACE_KEY, s.PLACE_KEY_END)

    @property
    def values(self) -> list[bytes | None]:
        """The value of each record, None for null."""
        return self._column(s.PLACE_VALUE, s.PLACE_VALUE_END)

    @property
    def raw_headers(self) -> list[bytes]:
        """The headers of each record as they stand in its batch, see `ConsumerRecord`."""
        places = self._fields.places[:, self._start : self._stop]
        if ((places[s.PLACE_HEADERS_END] - places[s.PLACE_HEADERS]) == 1).all():
            return [NO_HEADERS] * len(self)
        column: Any = self._column(s.PLACE_HEADERS, s.PLACE_HEADERS_END)
        return list(column)

    def _column(self, start_row: int, end_row: int) -> list[bytes | None]:
        places = self._fields.places
        found: list[bytes | None] = []
        first = self._start
        for buffer, stop in self._fields.pieces:
            if stop <= first:
                continue
            stop = min(stop, self._stop)
            starts, ends = places[start_row, first:stop], places[end_row, first:stop]
            pairs = zip(starts.tolist(), ends.tolist(), strict=True)
            if len(ends) and ends.min() >= 0:
                found += [buffer[a:b] for a, b in pairs]
            else:
                found += [buffer[a:b] if b >= 0 else None for a, b in pairs]
            first = stop
            if first == self._stop:
                break
        return found

    def _each(self) -> Iterator[ConsumerRecord]:
        """Make the records, one when it is asked for.

        One that is dropped before the next is made costs the garbage collector nothing, and its
        memory is that of the next: half as much time again as for a list of all.
        """
        topic, partition = self.topic, self.partition
        new, kind = tuple.__new__, ConsumerRecord
        rows = [*self._fields.longs, *self._fields.places[: s.PLACE_HEADERS]]
        headers, epochs = iter(self.raw_headers), self._epochs()
        first = self._start
        for buffer, end in self._fields.pieces:
            stop = min(end, self._stop)
            if stop <= first:
                continue
            fields = [row[first:stop].tolist() for row in rows]
            first = stop
            # The fields end before the headers, which go on with the next piece.
            for offset, time_ms, key, key_end, value, value_end, header, epoch in zip(
                *fields, headers, epochs, strict=False
            ):
                yield new(
                    kind,
                    (
                        topic,
                        partition,
                        offset,
                        time_ms,
                        buffer[key:key_end] if key_end >= 0 else None,
                        buffer[value:value_end] if value_end >= 0 else None,
                        header,
                        epoch,
                    ),
                )

    def _records(self) -> list[ConsumerRecord]:
        if self._made is None:
            columns = zip(
                repeat(self.topic, len(self)),
                repeat(self.partition),
                self.offsets.tolist(),
                self.timestamps_ms.tolist(),
                self.keys,
                self.values,
                self.raw_headers,
                self._epochs(),
                strict=False,  # two of them have no end
            )
            with collector_paused():
                self._made = list(map(_new_record, columns))
        return self._made

    def _epochs(self) -> Iterator[int]:
        epochs = self._fields.epochs
        if len(epochs) == 1:
            return repeat(epochs[0][0])
        return self._epoch_of_each(epochs)

    def _epoch_of_each(self, epochs: Sequence[tuple[int, int]]) -> Iterator[int]:
        current = 0
        for offset in self.offsets.tolist():
            while current + 1 < len(epochs) and epochs[current + 1][1] <= offset:
                current += 1
            yield epochs[current][0]


class Records(Mapping[TopicPartition, RecordList]):
    """Records of a poll, by partition; only partitions that have some."""

    __slots__ = ("_lists",)

    def __init__(self, lists: Mapping[TopicPartition, RecordList]) -> None:
        self._lists = lists

    def __getitem__(self, part: TopicPartition) -> RecordList:
        return self._lists[part]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._lists)

    def __len__(self) -> int:
        return len(self._lists)

    def __repr__(self) -> str:
        return f"<{self.count} records of {len(self)} partitions>"

    @property
    def count(self) -> int:
        """Number of records of all partitions."""
        return sum(map(len, self._lists.values()))

    def all(self) -> Iterator[ConsumerRecord]:
        """Iterate over the records, one partition after the other."""
        for records in self._lists.values():
            yield from records
