"""Loads of lanes as a test says them."""

from __future__ import annotations

from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.view import View


class FakeLoads(LaneLoads):
    """Measures nothing."""

    def __init__(self) -> None:
        self.rates: dict[str, dict[int, float]] = {}
        """Bytes per second."""
        self.record_rates: dict[str, dict[int, float]] = {}
        """Records per second; of one byte each where a test says nothing."""

    def record_count(self, view: View) -> float:
        return 300.0 * sum(self.records_per_s(view).values())

    def bytes_per_s(self, view: View) -> dict[int, float]:
        return self.rates.get(view.name, {})

    def records_per_s(self, view: View) -> dict[int, float]:
        return self.record_rates.get(view.name) or self.bytes_per_s(view)
