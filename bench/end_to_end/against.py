"""This keylane beside another one, of another revision, say: what a change has cost or gained.

    git worktree add ../before REVISION
    python -m bench.end_to_end.against --other ../before [--rounds 9] [--seconds 3]

Both stand before one Kafka at the same time and take turns in each step of each round, the first
turn in turns as well, and a ratio is taken within its step. So what the machine does besides hits
both alike, which it does not in two runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.end_to_end import consume, latency
from bench.end_to_end.stage import Stage, Topic, create_topic, describe_run, fill_topic, save
from bench.end_to_end.stage import open_stage as open_one
from tests.integration.keylane_process import KeylaneProcess

WAYS: Final = ("passthrough", "lanes-1", "lanes-4", "lanes-16")
SIDES: Final = ("this", "other")
FIGURES: Final = ("s/GB", "CPU s/GB", "record ms", "commit ms")
Figures = Mapping[str, float]


def main() -> int:
    """Measure and report."""
    options = parse_options()
    about = describe_run() | {"options": {**vars(options), "other": options.other.name}}
    print(f"machine: {about}")
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with open_stages(options.other) as stages:
        topic = fill_topic(
            stages["this"],
            "orders-lz4",
            codec="lz4",
            record_bytes=1000,
            megabytes=options.megabytes,
            batch_bytes=131_072,
        )
        create_topic(stages["this"], latency.TOPIC)
        for number in range(options.rounds + 1):
            for way in WAYS:
                step = measure_both(stages, topic, way, number, options)
                if number == 0:  # the first warms
                    continue
                for name in FIGURES:
                    ratios[way, name].append(step["this"][name] / step["other"][name])
                    for side in SIDES:
                        found[way, name, side].append(step[side][name])
    print(save(options.name, about | {"ways": report(ratios, found)}))
    return 0


def parse_options() -> argparse.Namespace:
    """Read argv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=consume.RAW)
    parser.add_argument("--other", type=Path, required=True, help="a source tree of keylane")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=float, default=300, help="plain MB of the topic")
    parser.add_argument("--seconds", type=float, default=3, help="of each run of latencies")
    parser.add_argument("--every-ms", type=float, default=5, help="one record each")
    parser.add_argument("--commits", type=int, default=200, help="one after another, per run")
    parser.add_argument("--name", default="against", help="of the result file")
    options = parser.parse_args()
    if not (options.other / "keylane" / "__init__.py").is_file():
        parser.error(f"--other {options.other}: no source tree of keylane")
    return options


@contextmanager
def open_stages(other: Path) -> Iterator[dict[str, Stage]]:
    """One Kafka, and both in front of it."""
    # A lone node refuses another one. The other tree may not know this setting.
    os.environ["KEYLANE_BESIDE_OTHERS"] = "true"
    with open_one() as stage:
        del os.environ["KEYLANE_BESIDE_OTHERS"]
        environment = {
            "KEYLANE_LOG": "warning",
            "PYTHONPATH": str(other.resolve()),
            "PYTHONSAFEPATH": "1",  # else `python -m` takes the folder that it stands in
        }
        process = KeylaneProcess(
            stage.kafka.bootstrap, [], log_path=stage.folder / "other.log", environment=environment
        ).start()
        try:
            yield {"this": stage, "other": replace(stage, keylane=process)}
        finally:
            process.stop()


def measure_both(
    stages: Mapping[str, Stage], topic: Topic, way: str, number: int, options: argparse.Namespace
) -> dict[str, Figures]:
    """One step: both sides' figures of one way."""
    order = SIDES if number % 2 else SIDES[::-1]
    runs = {
        side: consume.run_once(stages[side], topic, way, "drain", f"drain-{side}-{way}-{number}")
        for side in order
    }
    delays = {
        side: latency.measure(stages[side], way, f"delay-{side}-{way}-{number}", options)
        for side in order
    }
    gigabytes = topic.plain_bytes / 1e9
    return {
        side: {
            "s/GB": runs[side].seconds / gigabytes,
            "CPU s/GB": max(runs[side].cpu_s, 0.01) / gigabytes,  # the clock ticks each 10 ms
            "record ms": delays[side][0],
            "commit ms": delays[side][2],
        }
        for side in SIDES
    }


def report(
    ratios: Mapping[tuple[str, str], list[float]],
    found: Mapping[tuple[str, str, str], list[float]],
) -> dict[str, Any]:
    """Print the table; return it for the result file."""
    print("\nthis to the other, median of the steps (quartiles); beside it both medians")
    table: dict[str, Any] = defaultdict(dict)
    for (way, name), values in ratios.items():
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        this, other = (statistics.median(found[way, name, side]) for side in SIDES)
        print(
            f"  {way:12} {name:12} {middle:5.2f} ({low:.2f}-{high:.2f})"
            f"   this {this:.2f}, the other {other:.2f}"
        )
        table[way][name] = {
            "ratio": round(middle, 3),
            "quartiles": [round(low, 3), round(high, 3)],
            "this": round(this, 3),
            "other": round(other, 3),
        }
    return table


if __name__ == "__main__":
    sys.exit(main())
