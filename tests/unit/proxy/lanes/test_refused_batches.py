"""Batches that are refused for good: known by offset, forgotten with their log, bounded."""

from __future__ import annotations

import uuid

from keylane.proxy.lanes.refused_batches import PARTITIONS_MAX, PER_PARTITION_MAX, RefusedBatches

TOPIC = uuid.UUID(int=7)


def test_offsets_inside_a_batch_are_refused() -> None:
    """From the first to the last, of this partition of this topic."""
    refused = RefusedBatches()

    assert refused.note(TOPIC, 0, 40, 49) and not refused.note(TOPIC, 0, 40, 49)

    asked = [39, 40, 45, 49, 50]
    assert [refused.holds(TOPIC, 0, each) for each in asked] == [False, True, True, True, False]
    assert not refused.holds(TOPIC, 1, 40) and not refused.holds(uuid.UUID(int=8), 0, 40)


def test_a_cut_and_a_new_start_forget() -> None:
    """What a batch reaches beyond is gone with the log that it was in."""
    refused = RefusedBatches()
    for first in (10, 20, 30):
        refused.note(TOPIC, 0, first, first + 5)

    refused.forget_from(TOPIC, 0, 33)
    refused.forget_below(TOPIC, 0, 16)

    assert [refused.holds(TOPIC, 0, each) for each in (10, 20, 30)] == [False, True, False]
    refused.forget_from(TOPIC, 0, 0)
    refused.forget_from(TOPIC, 5, 0)
    assert len(refused) == 0


def test_many_are_bounded() -> None:
    """The lowest of a partition go, and the partition that met one longest ago."""
    refused = RefusedBatches()
    for offset in range(PER_PARTITION_MAX + 1):
        refused.note(TOPIC, 0, offset, offset)
        refused.check()
    assert not refused.holds(TOPIC, 0, 0) and refused.holds(TOPIC, 0, PER_PARTITION_MAX)

    for partition in range(1, PARTITIONS_MAX + 1):
        refused.note(TOPIC, partition, 5, 5)
        refused.check()
    assert not refused.holds(TOPIC, 0, PER_PARTITION_MAX) and refused.holds(TOPIC, 1, 5)
