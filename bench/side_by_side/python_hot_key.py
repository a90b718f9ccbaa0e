"""Ten milliseconds of asyncio work and Zipf keys, of which the first has an eighth of all records.

What the hottest key allows is the ideal of 8 workers: it has to be at work from the first record
to the last one.
"""

from __future__ import annotations

from typing import Final

from bench.side_by_side.lineup import Lineup
from bench.side_by_side.outcome import Outcome, median
from bench.side_by_side.python_workers import (
    COLUMNS,
    LANES,
    SHARE_LEAST,
    measure,
    own_keylane,
    parallel,
    python,
    report,
)
from bench.side_by_side.slow_work import PARALLEL, WORK_MS, Load

WORKERS: Final = 8
ONE: Final = "Workers, 1 process of 8"
TWO: Final = "Workers, 2 processes of 4 on lanes"
DIRECT: Final = "Workers on plain Kafka, 1 process of 8"


def run(lineup: Lineup) -> Outcome:
    """Measure all in turn."""
    outcome = Outcome(
        "python_hot_key",
        f"{WORK_MS} ms of asyncio work per record, 1,000 Zipf keys, 1 partition, {WORKERS} at work",
        COLUMNS,
    )
    kafka = lineup.kafka.bootstrap
    with own_keylane(lineup) as through:
        plan = {
            ONE: python(through, WORKERS),
            TWO: python(through, WORKERS // 2, 2, f".lanes-{LANES}"),
            DIRECT: python(kafka, WORKERS),
            PARALLEL: parallel(kafka, WORKERS),
        }
        figures = measure(lineup, Load(WORKERS, is_even=False), plan, TWO, outcome)
    report(figures, outcome)
    for name in (ONE, TWO, DIRECT):
        ours = median(figures[name].shares)
        outcome.target(f"{name}: share of ideal %", ours, at_least=SHARE_LEAST)
        outcome.target(f"{name}: out of key order", figures[name].wrong_count, at_most=0)
    return outcome
