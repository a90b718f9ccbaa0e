"""Weights from measured rates: whole numbers that a plan adds up and compares.

The rates are measured where partitions are split (`proxy.scans.loads`), decaying there.

Whole numbers, because their sum does not depend on the order in which lanes are listed: every
process that plans with the same rates comes to the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from keylane.assignor.model import Lane, LaneTopic, Loads

MEAN_WEIGHT: Final = 1024
"""Weight of a lane with the mean rate; differences below a thousandth of it are noise."""
LANE_WEIGHT: Final = 16
"""Weight of a lane without a byte in it, so that idle lanes are spread as well."""
RATE_MAX: Final = 1e18
"""Bytes per second beyond this are a wrong measurement; sums of less cannot overflow."""


def join_rates(bytes_per_s: Loads, records_per_s: Loads) -> dict[Lane, float]:
    """One load of a lane, in bytes per second: half of it its bytes, half of it its records.

    A record counts as many bytes as the mean of all, so that both halves are as much in sum. What
    a consumer does takes a time per byte or a time per record, and which of both is not known.
    Lanes that one of both lacks are left out; the order of neither matters.
    """
    lanes = [lane for lane in bytes_per_s if lane in records_per_s]
    total_records = math.fsum(records_per_s[lane] for lane in lanes)
    if total_records <= 0:
        return {lane: bytes_per_s[lane] for lane in lanes}
    record_bytes = math.fsum(bytes_per_s[lane] for lane in lanes) / total_records
    return {lane: (bytes_per_s[lane] + record_bytes * records_per_s[lane]) / 2 for lane in lanes}


def weigh_lanes(topics: Sequence[LaneTopic], loads: Loads) -> dict[Lane, int]:
    """Weigh every lane of the topics.

    A lane whose rate is unknown (missing, negative, beyond RATE_MAX) counts as the mean of its
    topic, else as the mean of all; without any rate all lanes weigh the same. Cost: O(lanes).
    """
    rates = {
        (topic.name, index): _known(loads.get((topic.name, index)))
        for topic in topics
        for index in range(topic.index_count)
    }
    known = [rate for rate in rates.values() if rate is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    if mean == 0.0:
        return dict.fromkeys(rates, MEAN_WEIGHT)
    means = {topic.name: _topic_mean(topic, rates, mean) for topic in topics}
    return {
        lane: LANE_WEIGHT + _scale(means[lane[0]] if rate is None else rate, mean)
        for lane, rate in rates.items()
    }


def _known(rate: float | None) -> float | None:
    return rate if rate is not None and 0.0 <= rate <= RATE_MAX else None


def _topic_mean(topic: LaneTopic, rates: dict[Lane, float | None], mean: float) -> float:
    known = [
        rate for index in range(topic.index_count) if (rate := rates[topic.name, index]) is not None
    ]
    return math.fsum(known) / len(known) if known else mean


def _scale(rate: float, mean: float) -> int:
    return round(MEAN_WEIGHT * rate / mean)
