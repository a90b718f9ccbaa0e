"""Prometheus metrics of the workers, `keylane_workers_*`: read when Prometheus asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from keylane.client.workers.tallies import WORK_BUCKETS_S, Tallies
from keylane.client.workers.view import WorkersView

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX: Final = "keylane_workers_"
COUNTERS: Final = (
    ("done", "Records whose work has ended well."),
    ("failed_attempts", "Attempts that ended with an error, or over their time."),
    ("timeouts", "Attempts over their time."),
    ("retries", "Attempts that were put off for a back-off."),
    ("dead_letters", "Records written to the dead letter topic."),
    ("letter_failures", "Dead letters that could not be written; they are tried again."),
    ("rejected", "Records of a share group that are at their end."),
    ("discarded", "Outcomes that did not count: lost partitions, cancelled work."),
    ("commits", "Commits of finished records."),
    ("commit_failures", "Commits that have to be repeated."),
)
GAUGES: Final = (
    ("in_flight", "Records at work."),
    ("queued", "Records that wait."),
    ("keys_waiting", "Keys with records behind one that is not finished."),
    ("retries_waiting", "Records that wait for a further attempt."),
    ("held_bytes", "Bytes of the records that wait or are at work."),
    ("paused", "Partitions paused because queues are full."),
    ("lag", "Records behind the end of the log, where it is known."),
)


class WorkersCollector:
    """Shows tallies and counts of one `Workers`, labelled with its name."""

    def __init__(self, name: str, tallies: Tallies, view: Callable[[], WorkersView]) -> None:
        self._name, self._tallies, self._view = name, tallies, view

    def describe(self) -> Iterable[Metric]:
        """Nothing: several workers may have one registry, and differ by their label."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of now."""
        from prometheus_client.core import (  # noqa: PLC0415 - it takes 50 ms to import
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        labels = [self._name]
        for name, text in COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=["workers"])
            counter.add_metric(labels, getattr(self._tallies, name))
            yield counter
        view = self._view()
        for name, text in GAUGES:
            number = getattr(view, name)
            if number is not None:
                gauge = GaugeMetricFamily(PREFIX + name, text, labels=["workers"])
                gauge.add_metric(labels, number)
                yield gauge
        histogram = HistogramMetricFamily(
            PREFIX + "work_seconds", "Time of an attempt.", labels=["workers"]
        )
        histogram.add_metric(labels, self._buckets(), self._tallies.work_s)
        yield histogram

    def _buckets(self) -> list[tuple[str, float]]:
        """Return cumulated counts by upper bound."""
        bounds = [*(f"{bound_s:g}" for bound_s in WORK_BUCKETS_S), "+Inf"]
        total, buckets = 0, []
        for bound, count in zip(bounds, self._tallies.work_counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets
