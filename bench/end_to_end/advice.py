"""`keylane advise` beside the clock: the speed-up that it says, and the one that members reach.

    python -m bench.end_to_end.advice [--repetitions 3] [--members 8] [--lanes 16] [--work-ms 5]

A run has two groups of stock members that wait some milliseconds for each record: one member per
partition at Kafka itself, and more members on lanes. Each reads some waves of the demo's orders, by
which keylane learns their load, and then a last one, which is timed from the first record that a
member begins to the last that one ends. The advice is of a sample of the topic.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Producer

from bench.end_to_end.balance import await_that
from bench.end_to_end.stage import (
    PARTITIONS,
    Spread,
    Stage,
    create_topic,
    describe_run,
    open_stage,
    read_metrics,
)
from bench.end_to_end.stage import save as save_result
from keylane.demo.forecast import forecast_speedup
from keylane.demo.orders import order_key

CUSTOMERS: Final = 500
EXPONENT: Final = 0.8
"""Of the demo's producer."""
WAVES, WAVE, LAST_WAVE = 5, 1_200, 6_000
ASKED: Final = "keylane_rebalances_asked_total"
INTERVAL_S: Final = 20
"""`load_rebalance_interval_s`: load is weighed after a tenth of it."""


class Crew:
    """Members in a child process, and what they have done."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, members: int, work_ms: float
    ) -> None:
        command = [sys.executable, "-m", "bench.side_by_side.slow_work_member"]
        command += [bootstrap, topic, group, str(members), str(work_ms)]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lanes: dict[int, int] = {}
        """By member."""
        self.done: list[tuple[int, int]] = []
        """Start and end of each record, in ns."""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._child.stdout is not None, "asked for with PIPE"
        for line in self._child.stdout:
            kind, *words = line.split()
            if kind == "a":
                self.lanes[int(words[0])] = int(words[1])
            elif kind == "w":
                self.done.append((int(words[1]), int(words[2])))

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.wait()
        self._thread.join()


@contextmanager
def working(*args: object) -> Iterator[Crew]:
    """Run a crew."""
    crew = Crew(*args)  # type: ignore[arg-type]
    try:
        yield crew
    finally:
        crew.close()


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--work-ms", type=float, default=5.0)
    options = parser.parse_args()
    said, reached = [], []
    with open_stage(["--set", f"load_rebalance_interval_s={INTERVAL_S}"]) as stage:
        for number in range(options.repetitions):
            topic = f"orders-{number}"
            direct_s = measure(
                stage, f"{topic}-direct", PARTITIONS, options.work_ms, seed=number, lanes=None
            )
            lanes_s = measure(
                stage, topic, options.members, options.work_ms, seed=number, lanes=options.lanes
            )
            said.append(
                forecast_speedup(
                    stage.kafka.bootstrap, topic, members=options.members, lanes=options.lanes
                )
            )
            reached.append(direct_s / lanes_s)
            asked = read_metrics(f"http://{stage.keylane.control}/metrics")[ASKED]
            print(f"run {number}: said {said[-1]:.2f}, reached {reached[-1]:.2f}"
                  f" ({direct_s:.1f} s, {lanes_s:.1f} s); rebalances for load so far {asked:.0f}",
                  flush=True)  # fmt: skip
    table = {"said": Spread(tuple(said)).as_json(), "reached": Spread(tuple(reached)).as_json()}
    path = save_result(
        "advice", {"run": describe_run(), "options": vars(options), "speedup": table}
    )
    print(f"wrote {path}")
    return 0


def measure(
    stage: Stage, topic: str, members: int, work_ms: float, *, seed: int, lanes: int | None
) -> float:
    """Return the seconds of the last wave; lanes: None at Kafka itself."""
    create_topic(stage, topic)
    bootstrap, name, count = stage.kafka.bootstrap, topic, PARTITIONS
    if lanes is not None:
        bootstrap, name = stage.keylane.bootstrap, f"{topic}.lanes-{lanes}"
        count *= lanes
    with working(bootstrap, name, f"g-{topic}", members, work_ms) as crew:
        await_that(lambda: sum(crew.lanes.values()) == count, f"{count} at members")
        for wave in range(WAVES if lanes is not None else 1):
            before = len(crew.done)
            produce(stage, topic, WAVE, 100 * seed + wave)
            await_that(lambda: len(crew.done) >= before + WAVE, "a wave")  # noqa: B023 - at once
            if lanes is not None:
                time.sleep(INTERVAL_S / WAVES)  # load is weighed by the clock
        before = len(crew.done)
        produce(stage, topic, LAST_WAVE, 100 * seed + WAVES)
        await_that(lambda: len(crew.done) >= before + LAST_WAVE, "the last wave")
        times = crew.done[before:]
    return (max(end for _, end in times) - min(start for start, _ in times)) / 1e9


def produce(stage: Stage, topic: str, count: int, seed: int) -> None:
    """Write orders of customers as the demo draws them."""
    chance = random.Random(seed)
    weights = [(rank + 1) ** -EXPONENT for rank in range(CUSTOMERS)]
    customers: Sequence[int] = chance.choices(range(CUSTOMERS), weights, k=count)
    producer = Producer({"bootstrap.servers": stage.kafka.bootstrap, "linger.ms": 20})
    for number, customer in enumerate(customers):
        producer.produce(topic, str(number), order_key(customer))
    assert producer.flush(60) == 0, "all records are acknowledged"


if __name__ == "__main__":
    sys.exit(main())
