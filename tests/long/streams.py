"""Kafka Streams over lanes for minutes: counts stay exact while instances are killed.

`python -m tests.long.streams --minutes 10 --instances 4`: one partition with eight lanes, an
application of exactly_once_v2 that counts values of a key, and one that counts again by another
key, each with as many instances of one thread. Every half minute an instance of each is killed
with -9 and started again with its state. In the end each count of each key must stand once in the
output, in order. Then a join of two lane topics, and one of murmur2 lanes with a plain topic, must
equal those of the same application on topics of eight partitions. Exit code 1 when one does not.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import yaml
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.fast_java import start_java_fast
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.made_topics import make_topic
from tests.streams.app import Application
from tests.streams.joins import IN_STEP, pairs_in_window, produce_sides
from tests.streams.output import StreamsOutput

LANES: Final = 8
KEYS: Final = [f"key-{number}" for number in range(200)]
PAUSE_S: Final = 0.5
"""Between two values of a key: 400 records a second."""
KILL_EVERY_S: Final = 30.0
SETTLE_S: Final = 240.0
JOIN_KEYS: Final = [f"key-{number}" for number in range(500)]
JOIN_ROUNDS: Final = 200
RULES: Final = [
    {"topic": "lanes-*", "lanes": LANES},
    {"topic": "murmur-*", "lanes": LANES, "hash": "murmur2"},
]


class Stage:
    """A broker, keylane before it, and topics."""

    def __init__(self, folder: Path, kafka: EmbeddedKafka, proxy: KeylaneProcess) -> None:
        self.folder, self.kafka, self.proxy = folder, kafka.bootstrap, proxy.bootstrap
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        self._numbers = itertools.count()

    def topic(self, label: str, partitions: int = 1) -> str:
        """Create a topic; return its name."""
        name = f"{label}-{next(self._numbers)}"
        make_topic(self._admin, NewTopic(name, partitions, 1))
        return name

    def run(self, source: str, topology: str, inputs: Sequence[str], **settings: object) -> Run:
        """Start nothing yet: an application at `source`, and its output."""
        return Run(self, source, topology, inputs, settings)


class Run:
    """One application, and what it makes."""

    def __init__(
        self, stage: Stage, source: str, topology: str, inputs: Sequence[str],
        settings: Mapping[str, object],
    ) -> None:  # fmt: skip
        target = stage.topic("out", LANES)
        self.topology = topology
        self.app = Application(source, topology, inputs, target, stage.folder, **settings)
        self.output = StreamsOutput(stage.kafka, target, partitions=LANES)


@contextmanager
def load(kafka: str, topic: str) -> Iterator[list[str]]:
    """Values of all keys in turn, until the block ends."""
    values: list[str] = []
    stopping = threading.Event()

    def run() -> None:
        for number in itertools.count():
            if stopping.wait(PAUSE_S):
                return
            values.extend(produce(kafka, topic, KEYS, 1, first=number, codecs=("lz4",)))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield values
    finally:
        stopping.set()
        thread.join()


def run_counts(stage: Stage, *, minutes: float, instances: int, rng: random.Random) -> bool:
    """Kill and start instances; return whether all counts are exact."""
    name = stage.topic("lanes")
    exact = {"processing_guarantee": "exactly_once_v2", "num_stream_threads": 1}
    runs = [stage.run(stage.proxy, one, [name], **exact) for one in ("count", "count-rounds")]
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(run.app).add(instances)
        kill_count = 0
        with load(stage.kafka, name) as values:
            for run in runs:
                run.app.wait_until_running()
            until_s = time.monotonic() + 60 * minutes
            while time.monotonic() < until_s:
                for run in runs:
                    run.output.take(seconds=KILL_EVERY_S / len(runs))
                    run.app.kill_and_start(rng.randrange(instances))
                    kill_count += 1
                print(f"killed {kill_count}, produced {len(values)}", flush=True)
        for run in runs:
            run.output.wait_for(len(values), timeout_s=SETTLE_S).take(seconds=10)
            run.output.close()
    rounds = len(values) // len(KEYS)
    by_key = {key: _counts(rounds) for key in KEYS}
    by_round = {str(number): _counts(len(KEYS)) for number in range(rounds)}
    are_right = [runs[0].output.values == by_key, runs[1].output.values == by_round]
    print(f"counts of {len(values)} records, {kill_count} kills: exact={are_right}", flush=True)
    return all(are_right)


def _counts(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]


def run_join(stage: Stage, topology: str, labels: Sequence[str], count: int) -> bool:
    """Return whether a join over lanes is that of the same application on partitions.

    count: records that come out for each key.
    """
    through = [stage.topic(label, LANES if label == "plain" else 1) for label in labels]
    direct = [stage.topic("plain", LANES) for _ in labels]
    lefts, rights = zip(through, direct, strict=True)
    produce_sides(stage.kafka, lefts, rights, JOIN_KEYS, JOIN_ROUNDS)
    runs = [
        stage.run(stage.proxy, topology, through, **IN_STEP),
        stage.run(stage.kafka, topology, direct, **IN_STEP),
    ]
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(run.app).add(2)
        for run in runs:
            run.output.wait_for(len(JOIN_KEYS) * count, timeout_s=SETTLE_S)
            run.output.take(seconds=10)
            run.output.close()
    is_equal = runs[0].output.values == runs[1].output.values
    print(f"{topology} of {labels}: {runs[0].output.count} records, equal={is_equal}", flush=True)
    return is_equal


def main() -> int:
    """Run all, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    start_java_fast()
    with tempfile.TemporaryDirectory() as name, EmbeddedKafka(Path(name) / "kafka") as kafka:
        rules = yaml.safe_dump(RULES, default_flow_style=True, width=9999)
        proxy = KeylaneProcess(
            kafka.bootstrap, (), log_path=Path(name) / "keylane.log",
            environment={"KEYLANE_LANES": rules},
        )  # fmt: skip
        proxy.start()
        try:
            stage = Stage(Path(name), kafka, proxy)
            rng = random.Random(args.seed)
            are_right = [
                run_counts(stage, minutes=args.minutes, instances=args.instances, rng=rng),
                run_join(stage, "join-window", ("lanes", "lanes"), pairs_in_window(JOIN_ROUNDS)),
                run_join(stage, "join-table", ("murmur", "plain"), JOIN_ROUNDS),
            ]
        finally:
            proxy.stop()
    return 0 if all(are_right) else 1


if __name__ == "__main__":
    sys.exit(main())
