"""A hundred microseconds of CPU per record in one Python process: `Workers`, and a pool by hand."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from bench.end_to_end.stage import create_topic
from bench.side_by_side.lineup import Lineup, progress
from bench.side_by_side.outcome import Outcome, median, spread
from bench.side_by_side.slow_work import KEYS, produce_burst

WORK_US: Final = 100
COUNT: Final = 60_000
TIMEOUT_S: Final = 120.0
WAYS: Final = (
    ("Workers through keylane", "workers", True),
    ("Workers on plain Kafka", "workers", False),
    ("aiokafka, pool by hand", "pool", False),
)


def run(lineup: Lineup) -> Outcome:
    """Measure each in turn."""
    outcome = Outcome(
        "python_short_work",
        f"{WORK_US} us of CPU per record, {KEYS:,} keys, 1 partition, 1 process of 64 workers",
        ("way", "records/s", "share of the core for work %", "CPU us per record beside the work"),
    )
    count = max(KEYS, int(COUNT * lineup.scale) // KEYS * KEYS)
    rates: dict[str, list[float]] = {name: [] for name, _, _ in WAYS}
    overheads: dict[str, list[float]] = {name: [] for name, _, _ in WAYS}
    for repetition in range(min(lineup.repetitions, 3)):
        for number, (name, way, is_through) in enumerate(WAYS):
            progress(f"python_short_work {repetition + 1}: {name}")
            topic = f"short-{repetition}-{number}"
            create_topic(lineup.stage, topic, 1)
            produce_burst(lineup.kafka.bootstrap, topic, repetition, [count // KEYS] * KEYS)
            bootstrap = lineup.keylane.bootstrap if is_through else lineup.kafka.bootstrap
            module = "bench.side_by_side.python_short_work_member"
            command = [sys.executable, "-m", module, way, bootstrap, topic, str(count)]
            done = subprocess.run(
                [*command, str(WORK_US)], check=True, capture_output=True, text=True,
                timeout=TIMEOUT_S,
            )  # fmt: skip
            wall_s, cpu_s = map(float, done.stdout.split())
            rates[name].append(count / wall_s)
            overheads[name].append(1e6 * cpu_s / count - WORK_US)
    for name, values in rates.items():
        share = [100 * value * WORK_US / 1e6 for value in values]
        row = (name, spread(values, 0), spread(share, 1), spread(overheads[name], 1))
        outcome.rows.append(row)
        outcome.keep(name, records_per_s=values, overhead_us=overheads[name])
    pool = median(rates[WAYS[-1][0]])
    for name, _, _ in WAYS[:-1]:
        outcome.target(f"{name}: to the pool by hand", median(rates[name]) / pool, at_least=1.0)
    return outcome
