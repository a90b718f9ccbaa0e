"""Fetch requests of lanes, and their answers.

Named tuples, as those of `wire.fetch`: two are made per lane and poll, frozen dataclasses take
four times as long. Change a copy with `_replace`.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple

from keylane.cache.lane_values import GapForm
from keylane.keyrange.key_split import KeySplit
from keylane.offsets.lineage import NO_EPOCH
from keylane.wire.batch import CODEC_NONE
from keylane.wire.primitives import Buffer


class LaneFetch(NamedTuple):
    """One lane of a request."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    output: int
    """The output of the split: a lane, or the share of a client with key ranges."""
    key_split: KeySplit
    fetch_offset: int
    partition_max_bytes: int
    reserve: bool = True
    """Keep whole slices for other lanes (`reserve.message.value.range.fetch`)."""
    codec: int = CODEC_NONE
    """Codec that compresses the batches again."""
    chosen_name: str = ""
    """A lane name that the client chose; empty where the operator has given the topic lanes."""
    leader_epoch: int = NO_EPOCH
    """Of the leader that the client knows (KIP-320); NO_EPOCH: it does not say."""

    def is_beside(self, other: LaneFetch) -> bool:
        """Return whether both surely are of one split of one partition, by their very objects."""
        return (
            self.partition == other.partition
            and self.key_split is other.key_split
            and self.topic_id is other.topic_id
            and self.codec == other.codec
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFetchRequest:
    """The lanes of one fetch request, and its limits."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    lanes: tuple[LaneFetch, ...]
    cursor_id: str
    """The client's connection."""
    user: str = ""
    """The client's principal, or its address where there is no principal."""
    gap_form: GapForm = GapForm.EMPTY


class LaneAnswer(NamedTuple):
    """The answer for one lane."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] | None
    """(producer id, first offset); None for clients that read uncommitted records."""
    records: tuple[Buffer, ...]
    size_bytes: int
