"""Bounds of one state: metadata that clients commit, and intervals of the hash space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from keylane.keyrange.space import KeyRange
from keylane.offsets.positions import PositionMap
from keylane.offsets.values import (
    METADATA_BYTES_MAX,
    METADATA_SUM_BYTES_MAX,
    POSITION_COUNT_MAX,
    CommitError,
)

CUTS_MAX: Final = 2
"""Intervals that a range may add: one at each end."""


def too_large(
    positions: PositionMap, key_ranges: Sequence[KeyRange], metadata: str | None
) -> CommitError | None:
    """Return the error when `key_ranges` do not fit beside `positions`; None: they do."""
    size_bytes = len(metadata.encode()) if metadata else 0
    if size_bytes > METADATA_BYTES_MAX:
        return CommitError.METADATA_TOO_LARGE
    # Four bytes per character at most, so the sum needs no encoding.
    if size_bytes and size_bytes + 4 * positions.text_chars > METADATA_SUM_BYTES_MAX:
        return CommitError.METADATA_TOO_LARGE
    if len(positions) + CUTS_MAX * len(key_ranges) <= POSITION_COUNT_MAX:
        return None  # the rule
    cuts = sum(positions.cuts_added(part.lo, part.hi) for part in key_ranges)
    if len(positions) + cuts > POSITION_COUNT_MAX:
        return CommitError.MAX_REACHED
    return None
