"""keylane/offsets/resets.py: values that are read, and the offset that each partition gets."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.offsets.resets import PlaceFacts, ResetInvalid, ResetTo, plan_resets, read_target

NOW_MS = 1_700_000_000_000


def facts(**changes: Any) -> PlaceFacts:
    """A partition whose log has offsets 100 to 200, and whose lanes stand at 120 to 150."""
    known: dict[str, Any] = {
        "topic": "orders", "partition": 0, "lanes": 4, "committed": 120, "furthest": 150,
        "log_start": 100, "log_end": 200,
    }  # fmt: skip
    return PlaceFacts(**{**known, **changes})


@pytest.mark.parametrize(
    ("where", "value", "number"),
    [
        ("earliest", None, 0),
        ("offset", 7, 7),
        ("offset", "7", 7),
        ("shift-by", "-7", -7),
        ("shift-by", 7, 7),
        ("datetime", 5, 5),
        ("datetime", "1970-01-01T00:00:01.500", 1500),
        ("datetime", "1970-01-01T01:00:01.500+01:00", 1500),
        ("datetime", "1969-01-01T00:00:00", 0),
        ("duration", "PT1H", NOW_MS - 3_600_000),
        ("duration", "P1DT2H3M4.5S", NOW_MS - 93_784_500),
        ("duration", "P999999999D", 0),
    ],
)
def test_values(where, value, number) -> None:
    """Numbers come as JSON has them, or as text; a time without an offset is of UTC."""
    assert read_target(where, value, now_ms=NOW_MS) == ResetTo(where, number)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("nowhere", None), ("earliest", 1), ("offset", None), ("offset", -1), ("offset", "x"),
        ("offset", 2**63), ("offset", "9" * 30), ("shift-by", None), ("datetime", None),
        ("datetime", -1), ("datetime", "yesterday"), ("datetime", "2" * 1000), ("duration", "P"),
        ("duration", "PT"), ("duration", "2 days"), ("duration", 5), ("duration", "P1Y"),
    ],
)  # fmt: skip
def test_values_that_cannot_be(where, value) -> None:
    """The text says what is expected in their place."""
    with pytest.raises(ResetInvalid):
        read_target(where, value, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("to", "changes", "expected"),
    [
        (ResetTo("earliest"), {}, (100, 50, 0, False)),
        (ResetTo("latest"), {}, (200, 0, 80, False)),
        (ResetTo("current"), {}, (120, 30, 0, False)),
        (ResetTo("current"), {"committed": 90}, (100, 50, 0, True)),
        (ResetTo("current"), {"committed": None, "furthest": None}, (200, 0, 0, False)),
        (ResetTo("offset", 130), {}, (130, 20, 10, False)),
        (ResetTo("offset", 50), {}, (100, 50, 0, True)),
        (ResetTo("offset", 500), {}, (200, 0, 80, True)),
        (ResetTo("shift-by", -10), {}, (110, 40, 0, False)),
        (ResetTo("shift-by", 1000), {}, (200, 0, 80, True)),
        (ResetTo("datetime", 5), {"at_time": 170}, (170, 0, 50, False)),
        (ResetTo("duration", 5), {"at_time": None}, (200, 0, 80, False)),
        (ResetTo("latest"), {"committed": 40}, (200, 0, 100, False)),
    ],
)
def test_offsets(to, changes, expected) -> None:
    """Offsets are within the log; what comes again and what is skipped is counted of all lanes."""
    (found,) = plan_resets([facts(**changes)], to)

    shown = (found.to_offset, found.offsets_again, found.offsets_skipped, found.is_clamped)
    assert shown == expected


def test_nothing_can_be_shifted() -> None:
    """A partition without a committed offset is named."""
    with pytest.raises(ResetInvalid, match="partition 0 has no committed offset"):
        plan_resets([facts(committed=None)], ResetTo("shift-by", 1))
