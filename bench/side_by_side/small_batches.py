"""Producers with linger 0: batches of one record each, read over 16 lanes.

In:    a topic of one partition, one record per batch.
Out:   records per second of stock Java consumers, direct and over lanes.
"""

from __future__ import annotations

from typing import Final

from bench.end_to_end.stage import MB, fill_topic
from bench.side_by_side.lineup import Lineup, progress, read_with_java
from bench.side_by_side.outcome import Outcome, median, ratios, spread
from bench.side_by_side.usage import Meter

TOPIC: Final = "linger-0"
MEGABYTES: Final = 20.0
RECORD_BYTES: Final = 100
LANES: Final = 16
MEMBERS: Final = (1, 4)


def run(lineup: Lineup) -> Outcome:
    """Measure in turns."""
    outcome = Outcome(
        "small_batches",
        "Linger 0: one record per batch, 100 B, 16 lanes, stock Java consumers",
        ("way", "1000 rec/s", "to direct", "proxy CPU s per M records", "proxy sent MB"),
    )
    if lineup.readers is None:
        outcome.notes.append("left out: no JDK for the readers")
        return outcome
    topic = fill_topic(
        lineup.stage, TOPIC, codec="none", record_bytes=RECORD_BYTES,
        megabytes=MEGABYTES * lineup.scale, batch_bytes=16_384, partitions=1, batch_records=1,
    )  # fmt: skip
    ways = {"direct": 0} | {f"{count} members over lanes": count for count in MEMBERS}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    cpus: dict[str, list[float]] = {way: [] for way in ways}
    sent: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(lineup.repetitions + 1):
        progress(f"small_batches {number}/{lineup.repetitions}")
        for way, members in ways.items():
            name, bootstrap, indexes = TOPIC, lineup.kafka.bootstrap, [[0]]
            if members:
                lineup.keylane.restart()
                name, bootstrap = f"{TOPIC}.lanes-{LANES}", lineup.keylane.bootstrap
                indexes = [list(range(LANES))[member::members] for member in range(members)]
            with Meter(lineup.pids) as meter:
                seconds = read_with_java(lineup, bootstrap, name, topic.record_count, indexes)
            if number == 0:  # warms
                continue
            rates[way].append(topic.record_count / seconds / 1000)
            cpus[way].append(meter.usage["keylane"].cpu_s / topic.record_count * 1e6)
            sent[way].append(meter.usage["keylane"].written_bytes / MB)
    for way, values in rates.items():
        to_direct = ratios(values, rates["direct"])
        outcome.keep(way, krec_per_s=values, cpu_s_per_mrec=cpus[way], sent_mb=sent[way])
        outcome.rows.append(
            (way, spread(values, 0), spread(to_direct), spread(cpus[way]), spread(sent[way], 0))
        )
        if way != "direct":
            outcome.target(f"{way}: records/s to direct", median(to_direct), at_least=0.5)
    return outcome
