"""All numbers of a process as Prometheus text that Prometheus' own parser reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from keylane import __version__
from keylane.proxy.control.metrics import Exposition
from keylane.proxy.runtime.stats import ProxyStats


def test_counters_gauges_and_histograms_are_read_back() -> None:
    """Labels, buckets, sums and counts come back as they were counted."""
    stats = ProxyStats()
    stats.requests.update(["Fetch", "Fetch", "Metadata"])
    stats.cache_bytes = 7
    for seconds in (0.05, 0.2, 100.0):
        stats.rebalance_seconds.observe(seconds)

    families = text_string_to_metric_families(Exposition([stats.samples]).text())

    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    assert values["keylane_requests_total", "Fetch"] == 2
    assert values["keylane_cache_bytes",] == 7
    assert values["keylane_rebalance_seconds_bucket", "0.1"] == 1
    assert values["keylane_rebalance_seconds_bucket", "0.25"] == 2
    assert values["keylane_rebalance_seconds_bucket", "60.0"] == 2
    assert values["keylane_rebalance_seconds_bucket", "+Inf"] == 3
    assert values["keylane_rebalance_seconds_count",] == 3
    assert values["keylane_rebalance_seconds_sum",] == 100.25
    assert values["keylane_build_info", __version__] == 1


def test_every_source_is_asked_for_each_scrape() -> None:
    """Numbers are those at the scrape."""
    stats = ProxyStats()
    exposition = Exposition([stats.samples])
    exposition.text()

    stats.sessions = 3

    assert "keylane_sessions 3.0" in exposition.text()


async def test_what_takes_long_is_looked_at_before_a_scrape() -> None:
    """Each look is awaited, then the sources give what it has found."""
    stats = ProxyStats()

    async def look() -> None:
        stats.sessions += 4

    exposition = Exposition([stats.samples], [look])

    assert "keylane_sessions 4.0" in await exposition.look()
    assert "keylane_sessions 8.0" in await exposition.look()
