"""Split of one partition: the intervals of its hash space, and which output gets each.

Source: decision 015 (docs/decisions): lanes and the ranges of client ids are one mechanism.
"""

from __future__ import annotations

import hashlib
import uuid
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from keylane.keyrange.hash import XXH64, KeyHash
from keylane.keyrange.space import HASH_MAX, KeyRange, split_even

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# NumPy is loaded with the first split: a program that imports keylane may make none.

NO_OUTPUT: Final = -1
"""The output of an interval whose records are dropped."""
OUTPUT_COUNT_MAX: Final = 2**15 - 1
"""The kernel keeps an int16 per record."""


@dataclass(frozen=True, slots=True, eq=False, init=False)
class KeySplit:
    """The hash space cut into intervals, each for one output or for none.

    Lanes are the plain case: interval k is output k. Where client ids have ranges, an output is a
    client, which may have several intervals. Equal splits are equal and hash alike, and splits of
    spaces with different key hashes are never equal; the hash is taken once, and one and the same
    object equals itself at once: readers are kept by it.
    Memory: 16 bytes per interval, in arrays; clients may have any number of splits made.
    Invariants: every output has an interval; cuts ascend, so that no interval is empty.
    """

    lows: array[int] = field(repr=False)
    """First hash of each interval, ascending; not to be changed."""
    outputs: tuple[int, ...] | None
    """Output of each interval, or NO_OUTPUT; None: the interval's own number."""
    limits: NDArray[np.uint64] = field(repr=False)
    """(intervals,) exclusive upper bounds, ascending, the last is 2**63; read-only."""
    output_of: NDArray[np.int16] = field(repr=False)
    """(intervals,) as `outputs`, empty for None; read-only."""
    output_count: int
    key_hash: KeyHash
    """The rule that gives keys their points."""
    _hash: int = field(repr=False)

    def __init__(
        self,
        cuts: Sequence[int],
        outputs: tuple[int, ...] | None = None,
        key_hash: KeyHash = XXH64,
    ) -> None:
        """cuts: first hashes of all intervals but the first. Raises: ValueError."""
        bounds = (0, *cuts, HASH_MAX + 1)
        if any(low >= high for low, high in pairwise(bounds)):
            raise ValueError("cuts must ascend inside of the hash space")
        count = len(bounds) - 1
        if outputs is not None:
            used = {output for output in outputs if output != NO_OUTPUT}
            if len(outputs) != count or used != set(range(len(used))):
                raise ValueError("every interval needs an output, and every output an interval")
            count = len(used)
        if count > OUTPUT_COUNT_MAX:
            raise ValueError(f"{count} outputs, at most {OUTPUT_COUNT_MAX}")
        limits, output_of = _as_arrays(bounds[1:], outputs or ())
        for name, value in (
            ("lows", array("q", bounds[:-1])),
            ("outputs", outputs),
            ("limits", limits),
            ("output_of", output_of),
            ("output_count", count),
            ("key_hash", key_hash),
            ("_hash", hash((bounds, outputs, key_hash))),
        ):
            object.__setattr__(self, name, value)

    @property
    def cuts(self) -> tuple[int, ...]:
        """First hashes of all intervals but the first; made anew each time."""
        return tuple(self.lows[1:])

    def has_cuts(self, hashes: Sequence[int]) -> bool:
        """Return whether it is cut at all of these."""
        import numpy as np  # noqa: PLC0415

        return bool(np.isin(np.array(hashes, np.uint64), self.limits[:-1]).all())

    def output_at(self, point: int) -> int:
        """Return the output of a point of the hash space, or NO_OUTPUT."""
        interval = bisect_right(self.lows, point) - 1
        return interval if self.outputs is None else self.outputs[interval]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, KeySplit) or self._hash != other._hash:
            return False
        same_outputs = self.outputs == other.outputs and self.key_hash == other.key_hash
        return same_outputs and self.lows == other.lows

    def __hash__(self) -> int:
        return self._hash

    def key_ranges(self) -> tuple[KeyRange, ...]:
        """Return the intervals, ascending."""
        bounds = (*self.lows, HASH_MAX + 1)
        return tuple(KeyRange(lo, limit - 1) for lo, limit in pairwise(bounds))

    def key_range(self, interval: int) -> KeyRange:
        """Return one interval by its number. Raises: ValueError, there is none."""
        count = len(self.lows)
        if not 0 <= interval < count:
            raise ValueError(f"no interval {interval} of {count}")
        hi = self.lows[interval + 1] - 1 if interval + 1 < count else HASH_MAX
        return KeyRange(self.lows[interval], hi)


def _as_arrays(
    limits: Sequence[int], outputs: Sequence[int]
) -> tuple[NDArray[np.uint64], NDArray[np.int16]]:
    """Return arrays that nothing can change."""
    import numpy as np  # noqa: PLC0415

    found = np.array(limits, np.uint64), np.array(outputs, np.int16)
    for array_ in found:
        array_.flags.writeable = False
    return found


class PartitionSplit(NamedTuple):
    """One partition, split in one way: the key of all that is known of it under that split."""

    topic_id: uuid.UUID
    partition: int
    key_split: KeySplit

    @property
    def place(self) -> tuple[uuid.UUID, int]:
        """The partition, however it is split."""
        return self.topic_id, self.partition


@lru_cache(maxsize=256)
def even_split(count: int, key_hash: KeyHash = XXH64) -> KeySplit:
    """Equal ranges, as `space.split_even` cuts them, output k for lane k; one object per count."""
    cuts = tuple(key_range.lo for key_range in split_even(count)[1:])
    return KeySplit(cuts, key_hash.lane_order(count), key_hash)


def owners_split(owners: Sequence[Sequence[KeyRange]], key_hash: KeyHash = XXH64) -> KeySplit:
    """Return the split whose output k is owner k; what none of them has is for no output.

    owners: ranges of each, disjoint among all of them; none without a range.
    Raises: ValueError, ranges overlap, or an owner has none.
    """
    placed = sorted(
        (part.lo, part.hi, owner) for owner, parts in enumerate(owners) for part in parts
    )
    cuts: list[int] = []
    outputs: list[int] = []
    limit = 0
    for lo, hi, owner in placed:
        if lo < limit:
            raise ValueError(f"two owners of hash {lo}")
        if lo > limit:
            _extend(cuts, outputs, limit, NO_OUTPUT)
        _extend(cuts, outputs, lo, owner)
        limit = hi + 1
    if limit <= HASH_MAX:
        _extend(cuts, outputs, limit, NO_OUTPUT)
    split = KeySplit(tuple(cuts), tuple(outputs), key_hash)
    if split.output_count != len(owners):
        raise ValueError("an owner without a range")
    return split


def _extend(cuts: list[int], outputs: list[int], lo: int, output: int) -> None:
    """Begin an interval at `lo`, unless the one before it has the same output."""
    if outputs and outputs[-1] == output:
        return
    if lo:
        cuts.append(lo)
    outputs.append(output)


@dataclass(frozen=True, slots=True, eq=False)
class LaneCuts:
    """The cuts of every partition of a topic, as a plan has them. Compared as `KeySplit` is."""

    splits: tuple[KeySplit, ...]
    """Split of each partition, all of one interval count, interval k for output k."""
    fingerprint: bytes = field(init=False)
    """SHA-256 of all cuts: what groups' lanes stood on, for the journal."""

    def __post_init__(self) -> None:
        counts = {len(split.lows) for split in self.splits}
        if len(counts) != 1 or any(split.outputs is not None for split in self.splits):
            raise ValueError("every partition needs the same count of lanes")
        digest = hashlib.sha256()
        for split in self.splits:
            digest.update(split.limits.astype("<u8").tobytes())
        object.__setattr__(self, "fingerprint", digest.digest())

    @classmethod
    def of(cls, cuts: Sequence[Sequence[int]]) -> LaneCuts:
        """Make cuts of the first hashes of all lanes but the first, by partition.

        Raises: ValueError, they do not ascend, or differ in count.
        """
        splits: dict[tuple[int, ...], KeySplit] = {}
        for row in cuts:
            splits.setdefault(tuple(row), KeySplit(tuple(row)))
        return cls(tuple(splits[tuple(row)] for row in cuts))

    @property
    def lane_count(self) -> int:
        """Lanes of each partition."""
        return self.splits[0].output_count

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, LaneCuts) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)
