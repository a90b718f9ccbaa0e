"""Places of a log that are read, by known answers."""

from __future__ import annotations

from keylane.advise.spans import SPANS, plan_spans, share_out


def test_a_short_log_is_read_whole() -> None:
    """All offsets, the newest sixteenth first."""
    spans = plan_spans(100, 100 + 64 * SPANS, 10**6)

    assert spans[0] == (100 + 64 * 15, 100 + 64 * 16)
    assert sorted(spans) == [(at, at + 64) for at in range(100, 100 + 64 * SPANS, 64)]


def test_a_long_log_is_read_at_places_that_spread() -> None:
    """The newest records, the oldest ones, then halves and quarters between."""
    spans = plan_spans(0, 16_000_000, 16_000)

    assert spans[0] == (15_999_000, 16_000_000 - 0)
    assert spans[1] == (0, 1_000)
    assert 8_000_000 < spans[2].start < 9_000_000
    assert 4_000_000 < spans[3].start < 5_000_000


def test_few_records_are_read_at_few_places() -> None:
    """A request for three records is not worth its time."""
    assert plan_spans(0, 1_000_000, 100) == [(999_900, 1_000_000)]


def test_partitions_have_their_part_and_small_ones_a_least() -> None:
    """A million records: of three partitions the smallest has 160 at least, or what it has."""
    assert share_out({0: 900_000, 1: 99_900, 2: 100, 3: 0}, 10_000) == {0: 9_000, 1: 999, 2: 100}
    assert share_out({0: 10**6, 1: 10**6}, 2) == {0: 1, 1: 1}
