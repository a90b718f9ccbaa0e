"""Where lanes' batches are written: apart from each other, and each freed alone."""

from __future__ import annotations

import numpy as np
import pytest

from keylane.kernel import block as blocks
from keylane.kernel.block import LaneRoom
from keylane.kernel.split import split_block
from keylane.kernel.status import COPY_SLACK_BYTES
from keylane.keyrange.lane import LaneLayout
from tests.reference.batches import Batch, Record, write_batch


def test_lanes_are_the_same_wherever_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes have the same bytes in one buffer, in one each, and in both beside each other."""
    records = tuple(Record(at, b"key-%d" % at, b"x" * (1 + at**2)) for at in range(40))
    wire = write_batch(Batch(0, records))
    key_split = LaneLayout(1, 64).key_split(0)
    found = []

    for small_max in (10**6, 0, 1000):
        monkeypatch.setattr(blocks, "SMALL_BYTES_MAX", small_max)
        block = split_block(wire, key_split, plain_bytes_max=2**20, batch_bytes_max=2**20)
        assert block is not None
        found.append([None if part is None else part.data for part in block.outputs])

    small, large, mixed = found
    contents = [[part and bytes(part) for part in parts] for parts in found]
    assert contents[0] == contents[1] == contents[2]
    assert {type(part) for part in small} == {bytes, type(None)}
    assert {type(part) for part in large} == {memoryview, type(None)}
    assert {type(part) for part in mixed} == {bytes, memoryview, type(None)}


def test_lanes_have_the_slack_that_kernels_write_behind_them() -> None:
    """So that what is copied too much for one lane is not in the next."""
    sizes = [7, 0, 9, 1]

    addresses = LaneRoom(sizes).addresses

    used = [address for address, size in zip(addresses, sizes, strict=True) if size]
    assert np.diff(used).tolist() == [7 + COPY_SLACK_BYTES, 9 + COPY_SLACK_BYTES]
    assert LaneRoom([0, 0]).take() == [None, None]
