"""An array of entities that comes several times over, each time with higher partition indexes.

Source: protocol guide, Metadata and DescribeTopicPartitions: an entity begins with an error code,
and goes on with the partition's index.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, overload

INDEX: Final = struct.Struct(">i")
INDEX_PLACE: Final = 1
"""Among the fields of the entity."""


class Repeated(Sequence[Any]):
    """Entities `copies` times over; those of copy c have `c * step` added to their index."""

    __slots__ = ("copies", "entries", "step")

    def __init__(self, entries: Sequence[Any], *, copies: int, step: int) -> None:
        self.entries, self.copies, self.step = entries, copies, step

    def __len__(self) -> int:
        return len(self.entries) * self.copies

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Any, ...]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return tuple(self[number] for number in range(len(self))[place])
        copy, number = divmod(range(len(self))[place], len(self.entries))
        entry = self.entries[number]
        index = entry.partition_index
        return replace(entry, partition_index=type(index)(copy * self.step + index))

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def write(self, out: list[bytes], item: Callable[[list[bytes], Any], None]) -> None:
        """Write all entities behind the array's length; `item` writes one, a part per field."""
        encoded = []
        for entry in self.entries:
            parts: list[bytes] = []
            item(parts, entry)
            assert parts[INDEX_PLACE] == INDEX.pack(entry.partition_index), "where an index stands"
            tail = b"".join(parts[INDEX_PLACE + 1 :])
            encoded.append((parts[0], entry.partition_index, tail))
        pack = INDEX.pack
        for copy in range(self.copies):
            first = copy * self.step
            for head, index, tail in encoded:
                out += (head, pack(first + index), tail)
