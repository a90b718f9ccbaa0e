"""Records in other partitions than their keys': counted, and logged once per partition."""

from __future__ import annotations

import logging
import uuid

import pytest

from keylane.proxy.lanes.misplaced import MisplacedRecords
from keylane.proxy.runtime.stats import ProxyStats

TOPIC, OTHER = uuid.UUID(int=7), uuid.UUID(int=8)


def test_the_first_record_of_a_partition_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Later ones are counted; another partition and another topic are logged as well."""
    stats = ProxyStats()
    misplaced = MisplacedRecords(stats)

    with caplog.at_level(logging.WARNING):
        misplaced.note("orders", TOPIC, 2, 40)
        misplaced.note("orders", TOPIC, 2, 41)
        misplaced.note("orders", TOPIC, 0, 7)
        misplaced.note("shop", OTHER, 2, 9)

    lines = [r.getMessage() for r in caplog.records if r.name.startswith("keylane")]
    places = [line.split(" topic=")[1].split(" remedy=")[0] for line in lines]
    assert places == [
        "orders partition=2 offset=40",
        "orders partition=0 offset=7",
        "shop partition=2 offset=9",
    ]
    assert all("remedy=let all producers" in line for line in lines)
    assert stats.blocks_misplaced == 4
    assert misplaced.of(TOPIC) == {0: 7, 2: 40}
    assert misplaced.of(uuid.UUID(int=9)) == {}
