"""pipeline/audit/seen.py: the holes of a bitmap, and options that would make some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.errors import ConfigInvalid
from keylane.pipeline.audit.job import AuditRequest
from keylane.pipeline.audit.rules import BITMAP_BITS
from keylane.pipeline.audit.seen import holes_of
from keylane.pipeline.brokers import Stretch

BUCKET = 3
FIRST = BUCKET * BITMAP_BITS


@given(
    held=st.sets(st.integers(0, 200)),
    start=st.integers(0, 100),
    width=st.integers(1, 101),
)
def test_holes_are_the_runs_of_offsets_that_a_bitmap_lacks(
    held: set[int], start: int, width: int
) -> None:
    """They cover what is lacking, each is as wide as can be, and nothing held lies in one."""
    bits = sum(1 << position for position in held).to_bytes(BITMAP_BITS // 8, "little")

    holes = holes_of(Stretch(7, FIRST + start, FIRST + start + width), bits)

    lacking = [FIRST + at for at in range(start, start + width) if at not in held]
    assert [at for hole in holes for at in range(hole.start, hole.end)] == lacking
    ends = {hole.end for hole in holes}
    assert all(hole.partition == 7 and hole.start not in ends for hole in holes)


def test_a_bucket_without_a_row_is_one_hole() -> None:
    """Nothing of it was seen."""
    span = Stretch(0, FIRST + 5, FIRST + BITMAP_BITS)

    assert holes_of(span, b"") == [span]


@pytest.mark.parametrize("name", ["failOnDataLoss", "endingOffsetsByTimestamp", "minPartitions"])
def test_options_that_change_what_is_read_are_refused(name: str) -> None:
    """With failOnDataLoss=false Spark would pass over records that are gone."""
    options = {"kafka.isolation.level": "read_committed", name: "false"}

    with pytest.raises(ConfigInvalid, match=f"--option {name}: an audit reads all records"):
        AuditRequest(
            bootstrap="kafka:9092", input_topic="a", audit_topic="b", out="/c", options=options
        )
