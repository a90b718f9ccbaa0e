"""Scans of partitions that client ids share: no position ever passes a record of its keys."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keylane.keyrange.key_split import NO_OUTPUT, KeySplit
from keylane.offsets.scan import ScanIndex

CUTS = (10, 20, 30, 40, 50)
INTERVALS = range(len(CUTS) + 1)

owners = st.lists(
    st.integers(NO_OUTPUT, 2), min_size=len(INTERVALS), max_size=len(INTERVALS)
).filter(lambda found: set(found) > {NO_OUTPUT})
logs = st.lists(st.none() | st.sampled_from(INTERVALS), min_size=1, max_size=30)
"""The interval of each offset's record; None: a control batch."""


@given(dealt=owners, log=logs, ends=st.sets(st.integers(1, 30)), offset=st.integers(0, 30))
def test_a_position_stops_at_the_next_record_of_its_own_keys(
    dealt: list[int], log: list[int | None], ends: set[int], offset: int
) -> None:
    """With any owners; keys without an output were not looked at, so only holes are passed."""
    names = sorted(set(dealt) - {NO_OUTPUT})
    outputs = tuple(NO_OUTPUT if owner == NO_OUTPUT else names.index(owner) for owner in dealt)
    split = KeySplit(CUTS, outputs)
    scan = ScanIndex(split)
    bounds = [0, *sorted(end for end in ends if end < len(log)), len(log)]
    for start, end in itertools.pairwise(bounds):
        lasts = np.full(split.output_count, -1, np.int64)
        for at in range(start, end):
            interval = log[at]
            if interval is not None and outputs[interval] != NO_OUTPUT:
                lasts[outputs[interval]] = at
        holes = [(at, at) for at in range(start, end) if log[at] is None]
        scan.add(start, end, lasts, holes=holes)
    scan.check()

    for interval in INTERVALS:
        found = scan.effective(split.key_range(interval), offset)

        if outputs[interval] == NO_OUTPUT:
            first = next((at for at in range(offset, len(log)) if log[at] is not None), len(log))
            assert found == max(offset, first)
            continue
        first = next((at for at in range(offset, len(log)) if log[at] == interval), len(log))
        assert offset <= found <= max(offset, first)
        own = [at for at in range(offset, len(log)) if log[at] is not None]
        own = [at for at in own if outputs[log[at]] == outputs[interval]]  # type: ignore[index]
        if not own:
            assert found == max(offset, len(log)), "nothing of the owner is left: not held back"
