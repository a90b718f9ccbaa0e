"""proxy/control/watch/gauges.py: lag as time and stuck members, bounded in series, never old."""

from __future__ import annotations

from keylane.proxy.control.gauges import LABEL_CHARS_MAX
from keylane.proxy.control.watch import gauges as module
from keylane.proxy.control.watch.gauges import FRESH_MS, SampledGauges
from keylane.proxy.control.watch.summary import GroupSummary

NOW_MS = 10_000_000


def summary(
    group: str, *, lag_s: float | None = None, stuck: int | None = 0, age_ms: int | None = 0
) -> GroupSummary:
    """A group as it was seen `age_ms` ago."""
    return GroupSummary(
        group=group,
        kind="lanes",
        protocol="classic",
        state="Stable",
        lag_s=lag_s,
        stuck_members=stuck,
        as_of_ms=None if age_ms is None else NOW_MS - age_ms,
    )


def values(*known: GroupSummary) -> dict[tuple[str, str], float]:
    """By the name of the metric and the group."""
    gauges = SampledGauges(lambda: {each.group: each for each in known}, lambda: NOW_MS)
    samples = list(gauges.samples())
    found = {(each.name, dict(each.labels)["group"]): each.value for each in samples}
    assert len(found) == len(samples), "a series is there once"
    return found


def test_lag_is_a_time_and_stuck_members_are_counted() -> None:
    """What is not known has no series, and is not zero."""
    found = values(summary("billing", lag_s=12.5, stuck=2), summary("idle", lag_s=None, stuck=None))

    assert found == {
        ("keylane_group_lag_seconds", "billing"): 12.5,
        ("keylane_group_members_stuck", "billing"): 2,
    }


def test_a_group_that_was_not_looked_at_has_no_series() -> None:
    """As when Kafka does not answer: a figure that stays would look like a quiet group."""
    found = values(
        summary("seen", lag_s=1, age_ms=FRESH_MS),
        summary("old", lag_s=1, age_ms=FRESH_MS + 1),
        summary("never", lag_s=1, age_ms=None),
    )

    assert {group for _, group in found} == {"seen"}


def test_groups_that_need_a_look_come_first(monkeypatch) -> None:
    """Beyond the bound: stuck members, then lag."""
    monkeypatch.setattr(module, "SERIES_MAX", 2)

    found = values(
        summary("late", lag_s=900),
        summary("stuck", lag_s=70, stuck=1),
        summary("well", lag_s=1),
    )

    assert {group for _, group in found} == {"late", "stuck"}


def test_a_long_group_id_is_cut() -> None:
    """Two ids that differ behind the cut are one series: that which needs a look most."""
    long = "x" * 400

    found = values(summary(long + "1", lag_s=3), summary(long + "2", lag_s=80, stuck=1))

    assert found["keylane_group_lag_seconds", long[:LABEL_CHARS_MAX]] == 80
    assert found["keylane_group_members_stuck", long[:LABEL_CHARS_MAX]] == 1
