"""A record every few milliseconds: how long from producer to consumer, on every way.

The producer always writes to Kafka itself; the consumer holds all lanes.
"""

from __future__ import annotations

from typing import Final

from bench.end_to_end.latency import Setting, measure_delays, quantiles
from bench.end_to_end.stage import create_topic
from bench.side_by_side.lineup import Lineup, progress
from bench.side_by_side.outcome import Outcome, median, spread

TOPIC: Final = "low-rate"
LANES: Final = 16
SECONDS: Final = 4.0
EVERY_MS: Final = 5.0


def run(lineup: Lineup) -> Outcome:
    """Measure in turns."""
    create_topic(lineup.stage, TOPIC, 1)
    lineup.keylane.restart()
    ways = {way: (address, TOPIC) for way, (address, _) in lineup.relays().items()}
    lanes = f"keylane, {LANES} lanes"
    ways[lanes] = (lineup.keylane.bootstrap, f"{TOPIC}.lanes-{LANES}")
    p50s: dict[str, list[float]] = {way: [] for way in ways}
    p99s: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(lineup.repetitions + 1):
        progress(f"low_rate {number}/{lineup.repetitions}")
        for way, (bootstrap, topic) in ways.items():
            setting = Setting(
                produce_to=lineup.kafka.bootstrap, produce_topic=TOPIC, bootstrap=bootstrap,
                topic=topic, group=f"low-rate-{number}-{topic}-{way.split(',')[0]}",
                seconds=max(1.0, SECONDS * lineup.scale), every_ms=EVERY_MS,
            )  # fmt: skip
            p50, p99 = quantiles(measure_delays(setting))
            if number > 0:  # the first warms
                p50s[way].append(p50)
                p99s[way].append(p99)
    outcome = Outcome(
        "low_rate",
        f"Low rate: a record of 1 KB every {EVERY_MS:g} ms, producer to consumer",
        ("way", "p50 ms", "p99 ms", "p50 over direct", "p99 over direct"),
    )
    for way in ways:
        added50 = [a - b for a, b in zip(p50s[way], p50s["direct"], strict=True)]
        added99 = [a - b for a, b in zip(p99s[way], p99s["direct"], strict=True)]
        outcome.keep(way, p50_ms=p50s[way], p99_ms=p99s[way])
        outcome.rows.append((way, *map(spread, (p50s[way], p99s[way], added50, added99))))
        if way == "keylane":
            outcome.target("relay: added p50 ms", median(added50), at_most=0.3)
            if "haproxy" in ways:
                ratio = median(p99s[way]) / median(p99s["haproxy"])
                outcome.target("relay: p99 to HAProxy's", ratio, at_most=1.0)
        elif way == lanes:
            outcome.target("lanes: added p50 ms", median(added50), at_most=0.5)
            outcome.target("lanes: added p99 ms", median(added99), at_most=2.0)
    return outcome
