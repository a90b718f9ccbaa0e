"""The speed-up that `keylane advise` promises for the demo's topic, beside the one seen."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from keylane.advise.fetching import Bounds
from keylane.advise.reader import Scope, read_evidence
from keylane.advise.speedup import direct_parallel, find_speedup
from keylane.client.settings import ConsumerSettings
from keylane.demo.ledger import Check

TOLERANCE: Final = 0.15
SETTLED: Final = 1.10
"""Of the busiest member, in times of the ideal: above it keylane has still to move lanes, and the
advice is for the time when it has."""
SAMPLE: Final = 20_000
"""Records: less than a show has, so that the advice is from a sample."""
BYTES_MAX: Final = 64 << 20
SECONDS_MAX: Final = 20.0


class Seen(NamedTuple):
    """Figures of the show before its members stop."""

    members: int
    speedup: float
    """Of the group over one member per partition, by counts of records."""
    excess: float
    """Load of the busiest member, in times of the ideal."""


def forecast_speedup(bootstrap: str, topic: str, *, members: int, lanes: int) -> float:
    """Return the speed-up over one member per partition that a sample of the topic promises.

    Raises: AdviceFailed.
    """
    scope = Scope(
        topic=topic,
        group=None,
        bounds=Bounds(records_max=SAMPLE, bytes_max=BYTES_MAX, seconds_max=SECONDS_MAX),
        watch_s=0.0,
    )
    settings = ConsumerSettings(bootstrap_servers=bootstrap, isolation_level="read_committed")
    keys = asyncio.run(read_evidence(settings, scope, lambda _text: None)).keys
    return find_speedup(keys, members, lanes).parallel / direct_parallel(keys)


def check_forecast(forecast: float, seen: Seen, *, is_judged: bool) -> Check:
    """Return the line of the verdict."""
    name = f"speed-up of {seen.members} members, as advised and as seen"
    is_good = abs(forecast - seen.speedup) <= TOLERANCE * seen.speedup
    if not is_judged:
        name += " (too short to judge)"
    elif seen.excess > SETTLED:
        name += " (lanes are still to move)"
    is_judged = is_judged and seen.excess <= SETTLED
    return Check(name, f"{forecast:.2f}, {seen.speedup:.2f}", is_good or not is_judged)
