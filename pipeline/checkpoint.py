"""Move the checkpoint of a Spark query from one lane count to another, where that is exact.

Source: Spark's OffsetSeqLog, format v1: a line `v1`, a line of metadata, then one line per source,
for the Kafka source JSON of topic -> partition -> next offset. A batch N is done when `commits/N`
exists; a query goes on from the newest.

Why: Spark starts a partition that it has not seen at its earliest offset, and lane 3 of 4 holds
other keys than lane 3 of 8. A query that is given another lane count under its old checkpoint
repeats most of the topic without a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from keylane.errors import KeylaneError
from keylane.keyrange.hash import HashName
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import LANE_COUNT_MAX
from keylane.pipeline.storage import Folder

LOG_VERSION: Final = "v1"
FIRST_SOURCE_LINE: Final = 2
LANE_NAME: Final = re.compile(r"(?P<topic>.+)\.lanes-(?P<lanes>[1-9][0-9]{0,3})")
OFFSETS: Final = "offsets"
BACKUP_FOLDER: Final = "keylane-backup"
"""Inside the checkpoint; Spark looks at no folder that it does not know."""
LOG_BYTES_MAX: Final = 256 << 20
"""A line of 100,000 lanes takes 2 MB."""


class CheckpointRefused(KeylaneError):
    """The checkpoint cannot be migrated without losing or repeating records; the text says why."""


@dataclass(frozen=True, slots=True)
class OffsetLog:
    """The newest batch of a checkpoint, line by line as Spark wrote it."""

    checkpoint: Folder
    batch: int
    lines: tuple[str, ...]

    @property
    def path(self) -> str:
        """The batch's file, for messages."""
        return f"{self.checkpoint}/{OFFSETS}/{self.batch}"


@dataclass(frozen=True, slots=True)
class Migration:
    """Result of a migration: `offsets` by lane index of the new topic."""

    log: OffsetLog
    from_topic: str
    to_topic: str
    from_layout: LaneLayout
    to_layout: LaneLayout
    old_offsets: Mapping[int, int]
    offsets: Mapping[int, int]
    lines: tuple[str, ...]
    """The file as it shall be."""


def split_lane_name(name: str) -> tuple[str, int | None]:
    """Topic and lane count in a name such as `orders.lanes-16`; no count in other names."""
    found = LANE_NAME.fullmatch(name)
    return (found["topic"], int(found["lanes"])) if found is not None else (name, None)


def plan_migration(
    checkpoint: Folder,
    from_topic: str,
    to_topic: str,
    *,
    from_layout: LaneLayout | int | None = None,
    to_layout: LaneLayout | int | None = None,
    key_hash: HashName = "xxh64",
) -> Migration:
    """Return what `apply_migration` would write; nothing is changed.

    A layout may be a number of equal lanes; None takes it from the lane name, and a name
    without one stands for whole partitions. key_hash: of equal lanes, as the topic's rule has it.

    Raises:
        CheckpointRefused: no such checkpoint, a batch is under way, the topic is not in it, or a
            new lane would have to go on from two offsets at once.
        StorageFailed: the checkpoint cannot be read.
    """
    log = read_offset_log(checkpoint)
    old = parse_offsets(log, from_topic)
    if from_topic != to_topic and any(to_topic in tops for tops in _sources(log).values()):
        raise CheckpointRefused(f"{log.path}: {to_topic} is in it already")
    before = _layout(from_layout, from_topic, len(old), key_hash)
    after = _layout(to_layout, to_topic, before.partition_count, key_hash, is_lanes=False)
    if before.partition_count != after.partition_count:
        raise CheckpointRefused(
            f"{from_topic} has {before.partition_count} partitions, {to_topic}"
            f" {after.partition_count}"
        )
    if before.index_count != len(old):
        raise CheckpointRefused(
            f"{log.path}: {from_topic} has {len(old)} lanes there, not {before.index_count}"
        )
    new = plan_offsets(old, before, after)
    lines = _replace(log, from_topic, to_topic, new)
    return Migration(log, from_topic, to_topic, before, after, old, new, lines)


def plan_offsets(old: Mapping[int, int], before: LaneLayout, after: LaneLayout) -> dict[int, int]:
    """Offsets of the new lanes: each that of all the old lanes which it takes keys from.

    Raises:
        CheckpointRefused: old lanes of one new lane stand at different offsets, or lanes are of
            different hash spaces.
    """
    if min(before.lane_count, after.lane_count) > 1 and before.key_hash != after.key_hash:
        raise CheckpointRefused(
            f"{before.lane_count} lanes by {before.hash} and {after.lane_count} by {after.hash} "
            "are no parts of each other; go by way of whole partitions"
        )
    new: dict[int, int] = {}
    refused: list[str] = []
    for index in range(after.index_count):
        partition = after.partition_of(index)
        wanted = after.key_range(partition, after.lane_of(index))
        sources: dict[int, int] = {}
        for lane in range(before.lane_count):
            has = before.key_range(partition, lane)
            if has.lo <= wanted.hi and wanted.lo <= has.hi:
                source = before.lane_index(partition, lane)
                sources[source] = old[source]
        if len(set(sources.values())) > 1:
            listed = ", ".join(f"{lane} at {offset}" for lane, offset in sources.items())
            refused.append(f"new lane {index} joins old lanes {listed}")
        new[index] = next(iter(sources.values()))
    if refused:
        raise CheckpointRefused(
            f"{len(refused)} lanes cannot be joined exactly, the first: {refused[0]}. Let the query"
            " read to the log's end (trigger availableNow) while no producer writes, then try again"
        )
    return new


def apply_migration(migration: Migration) -> str:
    """Write the new offsets; returns where the old file's copy is. Stop the query before.

    Raises:
        CheckpointRefused: the checkpoint has changed since it was read.
        StorageFailed: a file cannot be written; then the old offsets are in place.
    """
    log = migration.log
    if read_offset_log(log.checkpoint) != log:
        raise CheckpointRefused(f"{log.path}: changed meanwhile; does the query still run?")
    backup = f"{OFFSETS}-{log.batch}"
    log.checkpoint.child(BACKUP_FOLDER).write(backup, _text(log.lines))
    offsets = log.checkpoint.child(OFFSETS)
    # Spark believes a checksum beside the file, and does without one.
    offsets.delete(f".{log.batch}.crc")
    offsets.write(str(log.batch), _text(migration.lines))
    return f"{log.checkpoint}/{BACKUP_FOLDER}/{backup}"


def read_offset_log(checkpoint: Folder) -> OffsetLog:
    """The newest batch of a checkpoint.

    Raises:
        CheckpointRefused: there is none, it is not committed, or its format is not known.
        ConfigInvalid: the file is larger than LOG_BYTES_MAX.
        StorageFailed: the checkpoint cannot be read.
    """
    batches = _numbers(checkpoint.child(OFFSETS))
    if not batches:
        raise CheckpointRefused(f"{checkpoint}: no checkpoint of a query (offsets/ has no batch)")
    batch = max(batches)
    if batch not in _numbers(checkpoint.child("commits")):
        raise CheckpointRefused(
            f"{checkpoint}: batch {batch} was begun and is not committed. Let the query end in"
            " order (trigger availableNow) with the topic it has, then try again"
        )
    data = checkpoint.child(OFFSETS).read(str(batch), LOG_BYTES_MAX) or b""
    lines = tuple(data.decode("utf-8", "replace").split("\n"))
    log = OffsetLog(checkpoint, batch, lines)
    if lines[0] != LOG_VERSION or len(lines) <= FIRST_SOURCE_LINE:
        raise CheckpointRefused(
            f"{log.path}: format {lines[0][:20]!r}, only {LOG_VERSION} is known"
        )
    return log


def parse_offsets(log: OffsetLog, topic: str) -> dict[int, int]:
    """Next offset by partition number of `topic`.

    Raises:
        CheckpointRefused: the topic is not in the batch, or its partitions have gaps.
    """
    sources = _sources(log)
    found = [topics[topic] for topics in sources.values() if topic in topics]
    if not found:
        names = sorted({name for topics in sources.values() for name in topics})
        raise CheckpointRefused(f"{log.path}: no topic {topic}, only {', '.join(names) or 'none'}")
    if len(found) > 1:
        raise CheckpointRefused(f"{log.path}: {topic} is read by {len(found)} sources")
    try:
        offsets = {int(partition): int(offset) for partition, offset in found[0].items()}
    except (AttributeError, TypeError, ValueError):
        raise CheckpointRefused(f"{log.path}: offsets of {topic} are no numbers") from None
    if sorted(offsets) != list(range(len(offsets))) or not offsets:
        raise CheckpointRefused(f"{log.path}: {topic} has partitions {sorted(offsets)[:20]}")
    return offsets


def _sources(log: OffsetLog) -> dict[int, dict[str, Any]]:
    """Topics by line, of the lines that are a Kafka source's."""
    sources: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(log.lines[FIRST_SOURCE_LINE:], start=FIRST_SOURCE_LINE):
        try:
            topics = json.loads(line)
        except ValueError:
            continue  # `-` of a source without offsets, or another source's form
        if isinstance(topics, dict) and all(isinstance(value, dict) for value in topics.values()):
            sources[number] = topics
    return sources


def _replace(
    log: OffsetLog, from_topic: str, to_topic: str, offsets: Mapping[int, int]
) -> tuple[str, ...]:
    lines = list(log.lines)
    for number, topics in _sources(log).items():
        if from_topic in topics:
            rest = {name: value for name, value in topics.items() if name != from_topic}
            rest[to_topic] = {str(index): offset for index, offset in sorted(offsets.items())}
            lines[number] = json.dumps(rest, separators=(",", ":"))
    return tuple(lines)


def _layout(
    wanted: LaneLayout | int | None,
    topic: str,
    count: int,
    key_hash: HashName,
    *,
    is_lanes: bool = True,
) -> LaneLayout:
    """A layout of `count` lanes of all partitions, or partitions."""
    if isinstance(wanted, LaneLayout):
        return wanted
    lanes = wanted if wanted is not None else split_lane_name(topic)[1] or 1
    if not 1 <= lanes <= LANE_COUNT_MAX:
        raise CheckpointRefused(f"{topic}: {lanes} lanes, from 1 to {LANE_COUNT_MAX}")
    if is_lanes and count % lanes:
        raise CheckpointRefused(
            f"{topic}: {count} lanes in the checkpoint are no multiple of {lanes}"
        )
    partitions = count // lanes if is_lanes else count
    return LaneLayout(partition_count=partitions, lane_count=lanes, hash=key_hash)


def _numbers(folder: Folder) -> set[int]:
    return {int(name) for name in folder.names() if name.isdecimal()}


def _text(lines: Sequence[str]) -> bytes:
    return "\n".join(lines).encode()
