"""Counters know their names, kinds and meanings."""

from __future__ import annotations

from keylane.proxy.runtime.stats import COUNTER, GAUGE, HISTOGRAM, Histogram, ProxyStats


def test_every_number_is_rendered_with_its_meaning() -> None:
    """No field without help; counters end in `_total`, gauges do not."""
    stats = ProxyStats()
    stats.requests["Fetch"] += 1

    samples = list(stats.samples())

    assert all(sample.help.endswith(".") for sample in samples)
    assert all((sample.kind == COUNTER) == sample.name.endswith("_total") for sample in samples)
    assert {sample.kind for sample in samples} == {GAUGE, COUNTER, HISTOGRAM}


def test_a_labelled_counter_has_a_sample_per_label() -> None:
    """Requests are counted by their API."""
    stats = ProxyStats()
    stats.requests.update(["Fetch", "Metadata", "Fetch"])
    stats.cache_bytes = 12

    values = {(sample.name, sample.labels): sample.value for sample in stats.samples()}

    assert values["keylane_requests_total", (("api", "Fetch"),)] == 2
    assert values["keylane_requests_total", (("api", "Metadata"),)] == 1
    assert values["keylane_cache_bytes", ()] == 12


def test_a_histogram_counts_up_to_each_bound() -> None:
    """A bound holds what equals it; what is above the last one is in `+Inf` alone."""
    histogram = Histogram((1.0, 2.0))

    for seconds in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(seconds)

    assert histogram.buckets() == (("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0))
    assert (histogram.count, histogram.sum) == (4, 10.0)


def test_writes_to_the_journal_are_counted() -> None:
    """Writes, their records, their seconds, and those that failed."""
    stats = ProxyStats()

    stats.journaled(3, 0.2, True)
    stats.journaled(1, 30.0, False)

    counted = (stats.journal_appends, stats.journal_records, stats.journal_errors)
    assert counted == (2, 4, 1)
    assert stats.journal_seconds.count == 2
