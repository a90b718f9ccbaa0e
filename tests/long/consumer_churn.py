"""A large consumer group (KIP-848) on lanes while members, nodes and the broker come and go.

`python -m tests.long.consumer_churn --java 8 --confluent 8 --nodes 2 --rounds 3`: two partitions of
16 lanes under a steady flow. First a quiet minute, which gives the longest pause that members have
anyway. Then in each round: two members join, two leave, two are killed with -9, a node is killed
and started, the broker is killed and started. In the end every record must have been seen, none
after its commit, each key in order, and no lane at two members at once, by the members' own
reports. Printed for each step: the time until all lanes have members again, and the longest pause
of the members and of lanes that stayed, beside those of the quiet minute. Exit code 1 after a
breach.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.fast_java import start_java_fast
from tests.integration.harness import Group
from tests.integration.made_topics import make_topic
from tests.integration.nodes import Nodes

TOPIC: Final = "orders"
GROUP: Final = "billing"
PARTITIONS, LANES = 2, 16
KEYS: Final = [f"key-{number}" for number in range(500)]
BROKER: Final = {
    "log.retention.ms": "-1",
    "group.consumer.min.session.timeout.ms": "20000",
    "group.consumer.session.timeout.ms": "20000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "5000",
}
STEP_S: Final = 14.0
"""Time after an event in which pauses are counted."""
SETTLE_S: Final = 180.0
TICK_S: Final = 0.01


class ChurnGroup(Group):
    """A group whose sightings have times."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.times: dict[str, list[float]] = {}
        """By member."""
        self.lane_times: dict[int, list[float]] = {}

    def _sight(self, name: str, lane: int, offset: int, key: str | None, value: str) -> None:
        super()._sight(name, lane, offset, key, value)
        now_s = time.monotonic()
        self.times.setdefault(name, []).append(now_s)
        self.lane_times.setdefault(lane, []).append(now_s)

    @property
    def living(self) -> list[str]:
        """Members whose process runs."""
        return [name for name, process in self.processes.items() if process.poll() is None]

    def pauses(
        self, times: Mapping[Any, list[float]], places: Iterable[Any], window: tuple[float, float]
    ) -> list[float]:
        """Longest time without a record at each place, in a window; ascending."""
        begin_s, end_s = window
        found = []
        for place in places:
            inside = [at for at in times.get(place, ()) if begin_s <= at <= end_s]
            marks = [begin_s, *inside, end_s]
            found.append(max(after - before for before, after in pairwise(marks)))
        return sorted(found)


@contextmanager
def steady_flow(bootstrap: str, per_s: int) -> Iterator[list[str]]:
    """Produce numbered values of all keys at an even rate until the block ends."""
    values: list[str] = []
    stopping = threading.Event()

    def run() -> None:
        # Without, a broker that is killed has batches written in another order.
        options = {"enable.idempotence": True, "partitioner": "murmur2_random"}
        producer = Producer({"bootstrap.servers": bootstrap, **options})
        rng, numbers = random.Random(1), dict.fromkeys(KEYS, 0)
        began_s, sent = time.monotonic(), 0
        while not stopping.wait(TICK_S):
            while sent < (time.monotonic() - began_s) * per_s:
                key = rng.choice(KEYS)
                value = f"{key}:{numbers[key]}"
                numbers[key] += 1
                producer.produce(TOPIC, key=key, value=value)
                values.append(value)
                sent += 1
            producer.poll(0)
        assert producer.flush(120) == 0, "records were not produced"

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield values
    finally:
        stopping.set()
        thread.join()


class Churn:
    """The run: steps, and what they cost."""

    def __init__(self, group: ChurnGroup, nodes: Nodes, broker: EmbeddedKafka, seed: int) -> None:
        self.group, self.nodes, self.broker = group, nodes, broker
        self.rng = random.Random(seed)

    def quiet(self, seconds: float) -> None:
        """Nothing happens."""
        self._step("quiet", lambda: None, seconds)

    def round(self) -> None:
        """One of each event."""
        group, rng = self.group, self.rng
        self._step("two members join", self._join)
        self._step("two members leave", lambda: self._end_two(group.leave))
        self._step("two members are killed", lambda: self._end_two(group.kill))
        self._step("two members join", self._join)
        self._step(
            "a node is killed", lambda: self._restart(rng.randrange(len(self.nodes.processes)))
        )
        self._step("the broker is killed", self._restart_broker)

    def _end_two(self, end: Callable[[str], None]) -> None:
        living = self.group.living
        java = [name for name in living if name.startswith("java")]
        other = [name for name in living if name not in java]
        for each in filter(None, (java, other)):
            end(self.rng.choice(each))

    def _join(self) -> None:
        self.group.add("confluent", 1)
        if any(name.startswith("java") for name in self.group.living):
            self.group.add("java", 1)

    def _restart(self, number: int) -> None:
        self.nodes[number].kill()
        self.nodes[number].start()

    def _restart_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def _step(self, name: str, act: Callable[[], object], seconds: float = STEP_S) -> None:
        group = self.group
        before = {member: set(group.seen.lanes[member]) for member in group.living}
        began_s = time.monotonic()
        act()
        group.wait_for_lanes(PARTITIONS * LANES, timeout_s=SETTLE_S)
        settled_s = time.monotonic() - began_s
        group.wait_for_more(200)
        left_s = began_s + seconds - time.monotonic()
        if left_s > 0:
            threading.Event().wait(left_s)
        window = began_s, time.monotonic()
        members = [member for member in before if member in group.living]
        kept = [lane for member in members for lane in before[member] & group.seen.lanes[member]]
        of_members = group.pauses(group.times, members, window)
        of_lanes = group.pauses(group.lane_times, kept, window)
        print(
            f"{name:24} settled {settled_s:5.1f} s  {len(group.living):2} members  longest pause "
            f"of {len(members):2} members {_shown(of_members)}, of {len(kept):2} lanes that stayed "
            f"{_shown(of_lanes)}",
            flush=True,
        )


def _shown(pauses: list[float]) -> str:
    return f"p50 {pauses[len(pauses) // 2]:.2f} max {pauses[-1]:.2f} s" if pauses else "-"


def main() -> int:
    """Run, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--java", type=int, default=8)
    parser.add_argument("--confluent", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-second", type=int, default=400)
    parser.add_argument("--quiet-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    start_java_fast()
    with tempfile.TemporaryDirectory() as folder:
        return run(args, Path(folder))


def run(args: argparse.Namespace, folder: Path) -> int:
    """Exit code of one run."""
    with EmbeddedKafka(folder / "kafka", properties=BROKER) as broker:
        make_topic(
            AdminClient({"bootstrap.servers": broker.bootstrap}), NewTopic(TOPIC, PARTITIONS, 1)
        )
        nodes = Nodes(broker.bootstrap, [f"{TOPIC}={LANES}"], folder=folder, count=args.nodes)
        with nodes, ChurnGroup(nodes.bootstrap, TOPIC, GROUP, protocol="consumer") as group:
            group.add("java", args.java)
            group.add("confluent", args.confluent)
            group.wait_for_lanes(PARTITIONS * LANES, timeout_s=SETTLE_S)
            churn = Churn(group, nodes, broker, args.seed)
            with steady_flow(broker.bootstrap, args.per_second) as values:
                churn.quiet(args.quiet_s)
                for _ in range(args.rounds):
                    churn.round()
            group.wait_for_values(values, timeout_s=SETTLE_S)
            group.wait_for_commits(timeout_s=SETTLE_S)
        return judge(group, values)


def judge(group: ChurnGroup, values: list[str]) -> int:
    """Print the verdict; 1 after a breach."""
    seen = group.seen
    again = sum(count - 1 for count in seen.values().values())
    failed = [event for _, event in seen.events if event["event"] == "commit_failed"]
    print(f"records {len(values)}, seen again {again}, commits {len(seen.commits)}")
    print(f"commits that failed {len(failed)}: {sorted({str(e.get('error')) for e in failed})}")
    breaches = 0
    for check in (
        seen.assert_nothing_committed_again,
        seen.assert_first_sightings_in_order,
        seen.assert_one_owner_at_a_time,
    ):
        try:
            check()
            print(f"{check.__name__.removeprefix('assert_')}: ok")
        except AssertionError as error:
            breaches += 1
            print(f"{check.__name__.removeprefix('assert_')}: BREACH {error}")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
