"""A plain topic through a relay: how fast one consumer reads, and what the relay uses for it."""

from __future__ import annotations

from typing import Final

from bench.end_to_end.drain import Drain, find_leader
from bench.end_to_end.stage import MB, fill_topic
from bench.side_by_side.lineup import Lineup, progress
from bench.side_by_side.outcome import Outcome, median, ratios, spread
from bench.side_by_side.usage import Meter

TOPIC: Final = "relay"
MEGABYTES: Final = 500
READ_TIMEOUT_S: Final = 120.0


def run(lineup: Lineup) -> Outcome:
    """Measure in turns."""
    topic = fill_topic(
        lineup.stage, TOPIC, codec="none", record_bytes=1000,
        megabytes=MEGABYTES * lineup.scale, batch_bytes=131_072,
    )  # fmt: skip
    ways = lineup.relays()
    rates: dict[str, list[float]] = {way: [] for way in ways}
    cpus: dict[str, list[float]] = {way: [] for way in ways}
    memories: dict[str, list[float]] = {way: [] for way in ways}
    lineup.keylane.restart()  # what earlier scenarios left in its memory is not the relay's
    ways = lineup.relays()
    for number in range(lineup.repetitions + 1):
        progress(f"relay {number}/{lineup.repetitions}")
        for way, (bootstrap, pid) in ways.items():
            begin, end = dict.fromkeys(range(len(topic.ends)), 0), dict(enumerate(topic.ends))
            drain = Drain(find_leader(bootstrap, TOPIC), TOPIC, begin, end)
            with Meter({way: pid} if pid else {}) as meter:
                seconds = drain.drain(READ_TIMEOUT_S)
            drain.close()
            if number == 0:  # warms
                continue
            gigabytes = drain.counts.wire_bytes / 1e9
            rates[way].append(gigabytes / seconds)
            if pid:
                cpus[way].append(meter.usage[way].cpu_s / gigabytes)
                memories[way].append(meter.usage[way].rss_bytes / MB)
    return report(rates, cpus, memories)


def report(
    rates: dict[str, list[float]], cpus: dict[str, list[float]], memories: dict[str, list[float]]
) -> Outcome:
    """Table and targets."""
    outcome = Outcome(
        "relay",
        "Relay of a plain topic, metadata rewritten",
        ("way", "GB/s", "to direct", "CPU s per wire GB", "RSS MB"),
    )
    for way, values in rates.items():
        outcome.keep(way, gb_per_s=values, cpu_s_per_gb=cpus[way], rss_mb=memories[way])
        outcome.rows.append(
            (way, spread(values), spread(ratios(values, rates["direct"])), spread(cpus[way]),
             spread(memories[way], 0))
        )  # fmt: skip
    if "haproxy" in rates:
        to_haproxy = median(ratios(rates["keylane"], rates["haproxy"]))
        outcome.target("consume rate to HAProxy's", to_haproxy, at_least=1.0)
        cpu = median(ratios(cpus["keylane"], cpus["haproxy"]))
        outcome.target("CPU per GB to HAProxy's", cpu, at_most=1.0)
    return outcome
