"""Tasks of Kafka Streams in an assignment: the topics that one subtopology reads.

Streams puts an AssignmentInfo into the user data of each member's assignment. It begins with a
task for each assigned partition, in the order of the partitions. Topics that are read by tasks of
one subtopology are joined or merged in it, and nothing else on the wire shows that.

Source: AssignmentInfo, ConsumerProtocolUtils.readTaskIdFrom and
StreamsPartitionAssignor.getActiveTasks of Kafka Streams 4.3 (versions 1 to 11).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from keylane.assignor.model import Lane
from keylane.assignor.protocol import Assignment
from keylane.errors import FrameInvalid
from keylane.wire.primitives import Reader

TASKS_VERSION_MAX: Final = 11
SUPPORTED_FROM: Final = 3
"""First version with the latest supported version behind its own."""
NAMED_FROM: Final = 10
"""First version whose tasks have the name of a topology."""
NUMBERS: Final = struct.Struct(">ii")
"""Subtopology and partition."""
UNNAMED: Final = struct.Struct(">iii")
"""The same, and the characters of a name behind them."""
CHAR_BYTES: Final = 2
NAME_CHARS_MAX: Final = 249
"""In a text, the same as for topics."""


class Subtopology(NamedTuple):
    """A part of a topology whose topics are read together."""

    topology: str
    """Name of the topology; empty where an application has a single one."""
    number: int

    def __str__(self) -> str:
        """Return it as Streams logs it; a name is cut, and has printable characters only."""
        name = ascii(self.topology[:NAME_CHARS_MAX])[1:-1]
        return f"{name}__{self.number}" if name else str(self.number)


class _Task(NamedTuple):
    subtopology: Subtopology
    partition: int


def read_subtopologies(assignment: Assignment) -> dict[Subtopology, frozenset[str]]:
    """Return the topics that a member reads, by subtopology.

    A newer version is read as the newest known one, if all that it says fits the partitions.

    Raises:
        FrameInvalid: the user data has not one task for each partition.
    """
    if not assignment.lanes:
        return {}
    version, tasks = _read_tasks(assignment.user_data)
    if len(tasks) != len(assignment.lanes):
        raise FrameInvalid(f"{len(tasks)} tasks of {len(assignment.lanes)} partitions")
    lanes = sorted(assignment.lanes)
    if version > TASKS_VERSION_MAX and not _fit(tasks, lanes):
        raise FrameInvalid(f"AssignmentInfo version {version}: known are 1 to {TASKS_VERSION_MAX}")
    topics: dict[Subtopology, set[str]] = {}
    for task, (topic, _) in zip(tasks, lanes, strict=True):
        topics.setdefault(task.subtopology, set()).add(topic)
    return {subtopology: frozenset(names) for subtopology, names in topics.items()}


def _read_tasks(data: bytes) -> tuple[int, list[_Task]]:
    reader = Reader(data, flexible=False)
    version = reader.int32()
    if version < 1:
        raise FrameInvalid(f"AssignmentInfo version {version}")
    if version >= SUPPORTED_FROM:
        reader.int32()  # latest supported version
    read = _read_named if version >= NAMED_FROM else _read_numbers
    return version, read(reader)


def _read_numbers(reader: Reader) -> list[_Task]:
    count = reader.count(NUMBERS.size)
    start = reader.advance(count * NUMBERS.size)
    pairs = NUMBERS.iter_unpack(reader.buffer[start : reader.position])
    return [_Task(Subtopology("", number), partition) for number, partition in pairs]


def _read_named(reader: Reader) -> list[_Task]:
    """Read tasks with the length of a name and a name each, which hardly any application has."""
    tasks = []
    for _ in range(reader.count(UNNAMED.size)):
        start = reader.advance(UNNAMED.size)
        number, partition, char_count = UNNAMED.unpack_from(reader.buffer, start)
        name = ""
        if char_count:
            size_bytes = char_count * CHAR_BYTES
            start = reader.advance(size_bytes)
            name = str(reader.buffer[start : start + size_bytes], "utf-16-be", "replace")
        tasks.append(_Task(Subtopology(name, number), partition))
    return tasks


def _fit(tasks: Sequence[_Task], lanes: Sequence[Lane]) -> bool:
    """Return whether each task has the index of its partition, as all of Streams' tasks do."""
    return all(task.partition == index for task, (_, index) in zip(tasks, lanes, strict=True))
