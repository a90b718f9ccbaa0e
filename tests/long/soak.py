"""A group under steady load while members, the proxy and the broker are killed at random.

`python -m tests.long.soak --minutes 5 --seed 7`: prints what it does, and the verdict: nothing
lost, and nothing that was committed delivered again. Exit code 1 when either does not hold.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.harness import Group
from tests.integration.keylane_process import KeylaneProcess

LIBRARIES = ("aiokafka", "confluent")
MEMBER_COUNT = 6
KEYS = [f"key-{number}" for number in range(500)]
ROUND_INTERVAL_S = 0.25


class SteadyProducer:
    """Numbered values per key, directly to Kafka; survives a broker that is away."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.values: list[str] = []
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": "lz4",
                "partitioner": "murmur2_random",
            }
        )
        self._topic = topic
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait until everything is acknowledged."""
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(120)
        assert left == 0, f"{left} records were never acknowledged"

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(ROUND_INTERVAL_S):
            for key in KEYS:
                value = f"{key}:{number}"
                self._producer.produce(self._topic, key=key, value=value)
                self.values.append(value)
            self._producer.poll(0)
            number += 1


def run(minutes: float, seed: int, folder: Path) -> bool:
    """One soak; True when nothing was lost and nothing committed came again."""
    chance = random.Random(seed)
    started_s = time.monotonic()
    with EmbeddedKafka(folder / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("orders", 2, 1)], operation_timeout=30)["orders"].result(60)
        log_path = folder / "keylane.log"
        proxy = KeylaneProcess(broker.bootstrap, ["orders=16"], log_path=log_path).start()
        options = {"session_timeout_ms": 6000, "assignor": "roundrobin"}
        with Group(proxy.bootstrap, "orders", "g", **options) as group:
            for number in range(MEMBER_COUNT):
                group.add(LIBRARIES[number % 2])
            producer = SteadyProducer(broker.bootstrap, "orders")
            pause = threading.Event()
            while time.monotonic() - started_s < minutes * 60:
                pause.wait(chance.uniform(4, 12))
                act(chance, group, proxy, broker)
            producer.stop()
            group.wait_for_values(producer.values, timeout_s=180)
            group.wait_for_commits(timeout_s=60)
        count = sum(group.seen.values().values())
        print(f"produced {len(producer.values)}, delivered {count}", flush=True)
        assert proxy.stop() == 0
        assert "Traceback" not in proxy.log
        group.seen.assert_nothing_committed_again()
    return True


def act(chance: random.Random, group: Group, proxy: KeylaneProcess, broker: EmbeddedKafka) -> None:
    """Do one bad thing."""
    what = chance.choice(["member", "member", "member", "proxy", "proxy stop", "broker"])
    print(f"{what}; delivered {len(group.seen.sightings)}", flush=True)
    if what == "member":
        living = [name for name, process in group.processes.items() if process.poll() is None]
        group.kill(chance.choice(living))
        group.add(chance.choice(LIBRARIES))
    elif what == "broker":
        broker.kill()
        broker.start()
    else:
        if what == "proxy":
            proxy.kill()
        proxy.restart()


def main() -> int:
    """Run and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            run(args.minutes, args.seed, Path(folder))
        except AssertionError as error:
            print(f"seed {args.seed}: FAILED: {error}")
            return 1
    print(f"seed {args.seed}: nothing lost, nothing committed delivered again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
