"""One partition read completely by 1, 4 and 16 members over 16 lanes, beside one direct reader.

The row `again` reads it once more through the same keylane, as a second group would.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from bench.end_to_end.stage import MB, Topic, fill_topic
from bench.side_by_side.lineup import Lineup, progress, read_with_java
from bench.side_by_side.outcome import Outcome, median, ratios, spread
from bench.side_by_side.usage import Meter

LANES: Final = 16
MEMBERS: Final = (1, 4, 16)
SIZES: Final = {1000: 400.0, 100: 150.0}
"""Megabytes of the topic by record size."""
Figures = dict[str, dict[str, list[float]]]


def run(lineup: Lineup) -> Outcome:
    """Measure in turns."""
    outcome = Outcome(
        "fan_out",
        "Fan-out: 1 partition, lz4, 16 lanes, stock Java consumers",
        ("records", "way", "plain MB/s", "to direct", "out of the broker, to direct",
         "broker CPU to direct", "proxy CPU s per plain GB", "proxy RSS MB"),
    )  # fmt: skip
    if lineup.readers is None:
        outcome.notes.append("left out: no JDK for the readers")
        return outcome
    for size, megabytes in SIZES.items():
        topic = fill_topic(
            lineup.stage, f"fan-{size}", codec="lz4", record_bytes=size,
            megabytes=megabytes * lineup.scale, batch_bytes=131_072, partitions=1,
        )  # fmt: skip
        figures: Figures = defaultdict(lambda: defaultdict(list))
        for number in range(lineup.repetitions + 1):
            progress(f"fan_out {size} B {number}/{lineup.repetitions}")
            measure(lineup, topic, figures)
        report(outcome, f"{size} B", figures)
    return outcome


def measure(lineup: Lineup, topic: Topic, figures: Figures) -> None:
    """One round; the first of all warms and is thrown away by `report`."""
    read(lineup, topic, "direct", 0, figures)
    for members in MEMBERS:
        lineup.keylane.restart()
        read(lineup, topic, f"{members} members", members, figures)
    read(lineup, topic, f"{MEMBERS[-1]} members, again", MEMBERS[-1], figures)


def read(lineup: Lineup, topic: Topic, way: str, members: int, figures: Figures) -> None:
    """One run of one way."""
    name, bootstrap, indexes = topic.name, lineup.kafka.bootstrap, [[0]]
    if members:
        name, bootstrap = f"{topic.name}.lanes-{LANES}", lineup.keylane.bootstrap
        indexes = [list(range(LANES))[member::members] for member in range(members)]
    with Meter(lineup.pids) as meter:
        seconds = read_with_java(lineup, bootstrap, name, topic.record_count, indexes)
    found = figures[way]
    found["mb_per_s"].append(topic.plain_bytes / seconds / MB)
    found["broker_bytes"].append(meter.usage["broker"].written_bytes)
    found["broker_cpu_s"].append(meter.usage["broker"].cpu_s)
    found["proxy_cpu_s_per_gb"].append(meter.usage["keylane"].cpu_s / topic.plain_bytes * 1e9)
    found["proxy_rss_mb"].append(meter.usage["keylane"].rss_bytes / MB)


def report(outcome: Outcome, size: str, figures: Figures) -> None:
    """Rows and targets of one record size."""
    figures = {
        way: {name: values[1:] for name, values in found.items()} for way, found in figures.items()
    }
    direct = figures["direct"]
    for way, found in figures.items():
        outcome.keep(f"{size}, {way}", **found)
        speed = ratios(found["mb_per_s"], direct["mb_per_s"])
        egress = ratios(found["broker_bytes"], direct["broker_bytes"])
        broker = ratios(found["broker_cpu_s"], direct["broker_cpu_s"])
        outcome.rows.append(
            (size, way, spread(found["mb_per_s"], 0), spread(speed), spread(egress, 3),
             spread(broker), spread(found["proxy_cpu_s_per_gb"]), spread(found["proxy_rss_mb"], 0))
        )  # fmt: skip
        if way == "direct":
            continue
        outcome.target(f"{size}, {way}: egress to direct", median(egress), at_most=1.02)
        outcome.target(f"{size}, {way}: broker CPU to direct", median(broker), at_most=1.2)
        if way.startswith("16"):
            outcome.target(f"{size}, {way}: speed to direct", median(speed), at_least=0.8)
            cpu = median(found["proxy_cpu_s_per_gb"])
            outcome.target(f"{size}, {way}: proxy CPU s/GB", cpu, at_most=3.0)
