"""Offset ranges and key ranges of OffsetCommit and TxnOffsetCommit: read out, and answered.

Source: docs/protocol-extensions.md; KIP draft "Cooperative consumer processing semantic", "Offset
Commit"; docs/decisions/049.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from keylane.errors import FrameInvalid
from keylane.keyrange.space import KeyRange
from keylane.offsets.intervals import Range
from keylane.offsets.values import CommitError
from keylane.proxy.apis.commits.entries import Entry, changed
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.ranged_views import view_of_ranges
from keylane.proxy.apis.shared.views import find_views
from keylane.proxy.topics.view import View
from keylane.wire.entities import unknown_tags_of, with_unknown_tags
from keylane.wire.extensions import (
    DRAFT_ERROR,
    KEY_RANGES,
    OFFSET_RANGES,
    STABLE_OFFSET,
    read_extensions,
    read_key_ranges,
    read_pairs,
    write_int16,
    write_int64,
)
from keylane.wire.offset_commit import CommitPartition
from keylane.wire.primitives import NO_TAGS, write_tags

log = logging.getLogger("keylane.offsets")


class Ranged(NamedTuple):
    """Fields of keylane's own in one entry of a commit."""

    ranges: tuple[Range, ...] = ()
    """Offsets that are done; none: the entry's offset counts."""
    key_ranges: tuple[KeyRange, ...] | None = None
    """Keys of the broker's partition; () is all of them. None: the index stands as it is."""
    is_invalid: bool = False
    """A field is not well formed: the entry is refused, the request can be read."""


class RangedTopics(NamedTuple):
    """Topic entries of a request without fields of keylane's own, and what these said."""

    topics: tuple[Any, ...]
    """An entry with such fields is in a topic entry for itself."""
    views: list[View | None]
    ranged: list[Ranged | None]
    """Of each topic entry; None: there were no such fields."""


async def find_ranged(
    topics: Sequence[Any], context: Context, client_id: str | None
) -> RangedTopics:
    """Part a request's topics by fields of keylane's own, and find the view of each part.

    Raises: FrameInvalid, the tagged fields are not well formed; UpstreamLost.
    """
    parted, ranged = list[Any](), list[Ranged | None]()
    for topic in topics:
        for part, found in _part(topic):
            parted.append(part)
            ranged.append(found)
    views = await find_views(parted, context, client_id)
    for number, (topic, found) in enumerate(zip(parted, ranged, strict=True)):
        if found is None or (found.key_ranges is None and views[number] is not None):
            continue
        index = int(topic.partitions[0].partition_index)
        keys = found.key_ranges or ()
        views[number] = await view_of_ranges(topic, {index: keys}, client_id, context)
    return RangedTopics(tuple(parted), views, ranged)


def _part(topic: Any) -> list[tuple[Any, Ranged | None]]:
    """Take entries with fields of keylane's own out of a topic entry."""
    if all(_tags_of(entry) == NO_TAGS for entry in topic.partitions):
        return [(topic, None)]
    rest, parts = [], list[tuple[Any, Ranged | None]]()
    for entry in topic.partitions:
        own, tags = read_extensions(_tags_of(entry))
        found = _read(own)
        if own:
            entry = _with_tags(entry, tags)
        if found is None:
            rest.append(entry)
        else:
            parts.append((changed(topic, partitions=(entry,)), found))
    if rest or not parts:
        return [(changed(topic, partitions=tuple(rest)), None), *parts]
    return parts


def _tags_of(entry: Any) -> bytes:
    """The raw tagged fields of a kio entity, or of a value of `wire.offset_commit`."""
    return entry.tags if isinstance(entry, CommitPartition) else unknown_tags_of(entry)


def _with_tags(entry: Any, tags: bytes) -> Any:
    if isinstance(entry, CommitPartition):
        return entry._replace(tags=tags)
    return with_unknown_tags(entry, tags)


def _read(own: dict[int, bytes]) -> Ranged | None:
    """Return the fields of an entry; None: there is nothing in them."""
    ranges: tuple[Range, ...] = ()
    try:
        if (data := own.get(OFFSET_RANGES)) is not None:
            ranges = read_pairs(data)
        if (keys := own.get(KEY_RANGES)) is not None:
            return Ranged(ranges, read_key_ranges(keys))
    except FrameInvalid:
        return Ranged(key_ranges=(), is_invalid=True)
    return Ranged(ranges) if ranges else None


def note_ranges(
    entries: Iterable[Entry], ranged: Sequence[Ranged | None], *, is_strict: bool
) -> None:
    """Give entries their ranges. is_strict: an offset beside ranges is refused, not ignored."""
    for entry in entries:
        found = ranged[entry.topic_number]
        if found is None:
            continue
        entry.is_ranged, entry.ranges = True, found.ranges
        if found.is_invalid or (is_strict and found.ranges and entry.offset != -1):
            entry.draft_error = CommitError.INVALID


def log_duplicates(group: str, entries: Iterable[Entry]) -> None:
    """Warn of ranges that were committed before: it is no error under at-least-once."""
    for entry in entries:
        if entry.duplicate_count and entry.place is not None:
            log.warning(
                "offset ranges were committed before group=%s topic=%s partition=%d ranges=%d "
                "remedy=none, a member has committed again what it was not answered for",
                group, *entry.place, entry.duplicate_count,
            )  # fmt: skip


def answer_tags(entry: Entry) -> bytes:
    """Return the tagged fields of an entry's answer: the stable offset, and the draft's error."""
    if not entry.is_ranged:
        return NO_TAGS
    fields: dict[int, bytes] = {}
    if entry.draft is not None:
        fields[STABLE_OFFSET] = write_int64(entry.draft.state.stable_offset)
    if entry.draft_error.draft_code:
        fields[DRAFT_ERROR] = write_int16(entry.draft_error.draft_code)
    return write_tags(fields)
