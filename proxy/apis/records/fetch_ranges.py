"""Key ranges in Fetch requests: taken out of the request, judged, and planned as reads.

In: entries with `wire.extensions.KEY_RANGES`, of a partition, or of the whole request for all
partitions that have none of their own. Out: reads of outputs of splits, or refusals.
The entry's index is the broker's partition, under whatever name the topic is asked for. No range,
or all of the hash space, is the whole partition: the broker answers that, as for any client.
Ranges that are just one lane of the topic are read with it. All others share splits as far as they
do not overlap (`topics.range_splits`).

Source: docs/protocol-extensions.md; KIP draft "Cooperative consumer processing semantic".
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.errors import FrameInvalid, TopicNotReady
from keylane.keyrange.space import WHOLE, merge_ranges
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.views import ZERO_ID, resolve_view
from keylane.proxy.lanes.fetch_request import LaneFetch
from keylane.proxy.topics.range_splits import PlacedRanges, Ranges
from keylane.proxy.topics.registry import PhysicalTopic
from keylane.proxy.topics.view import Share, View
from keylane.wire.batch import CODEC_NONE
from keylane.wire.extensions import (
    DRAFT_ERROR,
    KEY_RANGES,
    read_extensions,
    read_key_ranges,
    write_int16,
)
from keylane.wire.fetch import FetchAnswer, FetchPartition, FetchRequest, FetchTopic
from keylane.wire.primitives import NO_TAGS, write_tags

RANGE_FETCH_REFUSED: Final = 89
"""The draft's error of a topic that is not to be fetched by ranges."""
REFUSED_TAGS: Final = write_tags({DRAFT_ERROR: write_int16(RANGE_FETCH_REFUSED)})
RANGES_INVALID: Final = ErrorCode.invalid_request
"""Ranges that are not well formed. The request as such is, so its other partitions are served, and
the client gets a reason where a closed connection would make it try again without end."""
NO_ROOM: Final = ErrorCode.not_leader_or_follower
"""Too many ranges: all clients know this code in a Fetch answer, wait, and come again. They have
no rule for THROTTLING_QUOTA_EXCEEDED there, and take other codes for the end."""
ROOM_NAME: Final = "(key ranges)"
"""Name under which all reads of one user count (`reader_limit`); it is no topic's."""
REMEMBERED_BYTES_MAX: Final = 1024
"""Ranges up to this size are remembered as read: most clients ask for the same ones all the time.
Longer ones are read anew each time."""

Outcome = FetchAnswer | LaneFetch


class RangedTopic(NamedTuple):
    """The entries of a topic that name key ranges."""

    topic: FetchTopic
    ranges: tuple[Ranges | None, ...]
    """By entry; None: they are not well formed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedFetch:
    """A fetch request by what its entries are; no part has fields of keylane's own any more."""

    rest: FetchRequest
    """The request, with the entries that name no ranges."""
    ranged: tuple[RangedTopic, ...]
    names_ranges: bool
    """False: what was taken out said nothing."""


class PlannedTopic(NamedTuple):
    """A topic with ranges: what to read, or what to answer, by entry."""

    topic: FetchTopic
    view: View
    outcomes: list[Outcome]


# -- the request ----------------------------------------------------------------------------


def part_fetch(wanted: FetchRequest) -> PartedFetch | None:
    """Take keylane's fields out of a request; None: there are none in it.

    Raises: FrameInvalid, tagged fields that are not well formed.
    """
    general, has_own, tags = _read_section(wanted.tags)
    ranged, rest = list[RangedTopic](), list[FetchTopic]()
    known = dict[bytes, Ranges | None]()  # the request's own are those of each entry
    for topic in wanted.topics:
        _, topic_own, topic_tags = _read_section(topic.tags)
        has_own |= topic_own
        plain, entries = list[FetchPartition](), list[FetchPartition]()
        ranges = list[Ranges | None]()
        for entry in topic.partitions:
            data = general
            if entry.tags != NO_TAGS:
                own, entry_own, entry_tags = _read_section(entry.tags)
                data = general if own is None else own
                if entry_own:
                    has_own, entry = True, entry._replace(tags=entry_tags)
            if data is None:
                plain.append(entry)
            else:
                entries.append(entry)
                if data not in known:
                    known[data] = read_ranges(data)
                ranges.append(known[data])
        topic = topic._replace(tags=topic_tags)
        if entries:
            asked = topic._replace(partitions=tuple(entries))
            ranged.append(RangedTopic(asked, tuple(ranges)))
        if plain or not entries:
            rest.append(topic._replace(partitions=tuple(plain)))
    forgotten = []
    for left in wanted.forgotten:
        _, left_own, left_tags = _read_section(left.tags)
        has_own |= left_own
        forgotten.append(left._replace(tags=left_tags))
    if not has_own:
        return None
    request = replace(wanted, topics=tuple(rest), forgotten=tuple(forgotten), tags=tags)
    return PartedFetch(
        rest=request, ranged=tuple(ranged), names_ranges=general is not None or bool(ranged)
    )


def _read_section(section: bytes) -> tuple[bytes | None, bool, bytes]:
    """Return the key ranges of a section; whether it has fields of keylane; the section without.

    Raises: FrameInvalid.
    """
    if section == NO_TAGS:
        return None, False, NO_TAGS
    if len(section) <= REMEMBERED_BYTES_MAX:
        return _known_section(section)
    return _part_section(section)


def _part_section(section: bytes) -> tuple[bytes | None, bool, bytes]:
    own, others = read_extensions(section)
    return own.get(KEY_RANGES), bool(own), others


_known_section = lru_cache(maxsize=1024)(_part_section)


def read_ranges(data: bytes) -> Ranges | None:
    """Return ranges sorted and merged, no range as all keys; None: they are not well formed."""
    return _known_ranges(data) if len(data) <= REMEMBERED_BYTES_MAX else _read_ranges(data)


def _read_ranges(data: bytes) -> Ranges | None:
    try:
        return merge_ranges(read_key_ranges(data)) or WHOLE
    except FrameInvalid:
        return None


_known_ranges = lru_cache(maxsize=1024)(_read_ranges)


# -- the plan -------------------------------------------------------------------------------


class _FoundTopic(NamedTuple):
    """A topic that ranges are asked of."""

    topic: PhysicalTopic
    lanes: View | None
    """Its lanes under the name that the client has used, if any."""

    @property
    def is_renamed(self) -> bool:
        return self.lanes is not None and self.lanes.is_renamed


@dataclass(slots=True, eq=False)
class _Wish:
    """An entry that waits for a share, and its place among the outcomes."""

    found: _FoundTopic
    entry: FetchPartition
    ranges: Ranges
    outcomes: list[Outcome]
    at: int
    is_lane: bool = False
    """The ranges are one lane, and read with it."""


async def plan_ranges(
    parted: PartedFetch, context: Context
) -> tuple[list[FetchTopic], list[PlannedTopic]]:
    """Return whole partitions, which the broker answers, and the plan of all others.

    Waits for a moment where others' reads are about to change (see `topics.range_splits`).
    Raises: UpstreamLost.
    """
    whole: list[FetchTopic] = []
    planned: list[PlannedTopic] = []
    wishes: list[_Wish] = []
    for topic, ranges in parted.ranged:
        found = await _find_topic(topic, context)
        if isinstance(found, View):
            refused = [refuse(entry.partition, found.error_code) for entry in topic.partitions]
            planned.append(PlannedTopic(topic, found, list(refused)))
            continue
        if not found.is_renamed:  # the broker does not know other names, and answers by its own
            pairs = zip(topic.partitions, ranges, strict=True)
            entries = tuple(entry for entry, asked in pairs if asked == WHOLE)
            if entries:
                whole.append(topic._replace(partitions=entries))
        pairs = zip(topic.partitions, ranges, strict=True)
        parts = [pair for pair in pairs if found.is_renamed or pair[1] != WHOLE]
        if parts:
            planned.append(await _plan_topic(topic, found, parts, wishes, context))
    await _place_all(wishes, context)
    return whole, planned


def refuse(index: int, error_code: int, tags: bytes = NO_TAGS) -> FetchAnswer:
    """Return the answer of an entry that gets nothing."""
    return FetchAnswer(index, error_code, -1, -1, -1, None, -1, (), tags)


async def _find_topic(topic: FetchTopic, context: Context) -> _FoundTopic | View:
    """Return a topic, or a view that refuses it."""
    topic_id = None if topic.topic_id is None else uuid.UUID(bytes=topic.topic_id)
    view = await resolve_view(None, topic.name, topic_id, context)
    if view is not None and view.lanes is None:
        return view
    name = topic.name or "" if topic_id is None else context.registry.name_of_id(topic_id)
    name = view.topic if view is not None else name or ""
    try:
        physical = await context.find_topic(name)
    except TopicNotReady as error:
        return _refusing(name, error.topic_error_code)
    if physical is None:
        return _refusing(name, context.refusal_of(topic_id or name))
    return _FoundTopic(physical, view)


def _refusing(name: str, error_code: int) -> View:
    return View(name=name, topic=name, view_id=ZERO_ID, topic_id=ZERO_ID, error_code=error_code)


async def _plan_topic(
    topic: FetchTopic,
    found: _FoundTopic,
    parts: Sequence[tuple[FetchPartition, Ranges | None]],
    wishes: list[_Wish],
    context: Context,
) -> PlannedTopic:
    """Refuse what is to be refused; the rest becomes wishes. A right comes before any room."""
    name, lanes = found.topic.name, found.lanes
    view = View.of_shares("", name, found.topic.topic_id, {})
    tags, error_code = NO_TAGS, 0
    if not context.switches.accepts_range_fetch(name, is_lane_view=lanes is not None):
        error_code, tags = int(ErrorCode.topic_authorization_failed), REFUSED_TAGS
    else:
        error_code = await context.fetch_error(view)
    partition_count = context.registry.count_of(name)
    outcomes: list[Outcome] = []
    for entry, ranges in parts:
        code = error_code
        if not code and ranges is None:
            code = RANGES_INVALID
        if not code and not 0 <= entry.partition < partition_count:
            code = ErrorCode.unknown_topic_or_partition
        if not code and ranges is not None:
            wishes.append(_Wish(found, entry, ranges, outcomes, len(outcomes)))
            code = NO_ROOM  # until it is placed
        outcomes.append(refuse(entry.partition, code, tags))
    asked = topic._replace(partitions=tuple(entry for entry, _ in parts))
    return PlannedTopic(asked, view, outcomes)


async def _place_all(wishes: Sequence[_Wish], context: Context) -> None:
    """Put reads in the place of entries that get a share; all newcomers wait together."""
    while wishes:
        left = []
        wait_s = 0.0
        for wish in wishes:
            placing = _place(wish, context)
            if placing.share is not None:
                wish.outcomes[wish.at] = _read(wish, placing.share)
            elif placing.wait_s > 0:
                left.append(wish)
                wait_s = max(wait_s, placing.wait_s)
        if left:
            await context.pause(wait_s)
        wishes = left


def _place(wish: _Wish, context: Context) -> PlacedRanges:
    found, partition = wish.found, wish.entry.partition
    lane = _lane_share(found.lanes, partition, wish.ranges)
    wish.is_lane = lane is not None
    if lane is not None:
        return PlacedRanges(lane)
    return context.asked_ranges.place(
        found.topic.topic_id,
        partition,
        wish.ranges,
        context.clock(),
        key_hash=context.registry.key_hash_of(found.topic.name),
    )


def _lane_share(lanes: View | None, partition: int, ranges: Ranges) -> Share | None:
    """Return the share of ranges that are one lane: stock clients read it by the same split."""
    if lanes is None or len(ranges) != 1 or partition >= lanes.layout.partition_count:
        return None
    lane = lanes.layout.lane_with(partition, ranges[0])
    return None if lane is None else Share(ranges, lanes.layout.key_split(partition), lane)


def _read(wish: _Wish, share: Share) -> LaneFetch:
    (topic, lanes), entry = wish.found, wish.entry
    chosen_name = ROOM_NAME
    if wish.is_lane and lanes is not None:
        chosen_name = lanes.chosen_name
    return LaneFetch(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=entry.partition,
        output=share.output,
        key_split=share.key_split,
        fetch_offset=entry.fetch_offset,
        partition_max_bytes=entry.partition_max_bytes,
        reserve=lanes is None or lanes.reserve,
        codec=CODEC_NONE if lanes is None else lanes.codec,
        chosen_name=chosen_name,
        leader_epoch=entry.current_leader_epoch,
    )
