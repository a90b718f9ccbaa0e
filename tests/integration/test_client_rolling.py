"""A rolling restart of workers under load: each record once, keys in order, kept lanes go on."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter

import pytest
from confluent_kafka import Producer

from tests.integration.worker_crew import WorkerCrew, now_ns

LANES = 16
KEYS = 200
WORK_MS = 10
SLOW_S = 5


class Load(threading.Thread):
    """Produces numbered records of all keys in turn, at a steady rate, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str, rate_per_s: float) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._topic, self._rate_per_s = topic, rate_per_s
        self._stopping = threading.Event()
        self.count = 0

    def run(self) -> None:
        began_s = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - began_s) * self._rate_per_s)
            while self.count < due:
                self.produce(f"key-{self.count % KEYS}", WORK_MS, self.count // KEYS)
                self.count += 1
            self._producer.poll(0)
            self._stopping.wait(0.005)
        assert self._producer.flush(30) == 0

    def produce(self, key: str, work_ms: int, number: int) -> None:
        """One record; its number counts those of its key."""
        self._producer.produce(self._topic, f"{work_ms} {number}", key, partition=0)

    def stop(self) -> None:
        """End, with all acknowledged."""
        self._stopping.set()
        self.join(30)


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.long)])
def test_a_rolling_restart_repeats_nothing(kafka, keylane, topic, protocol) -> None:
    """Three processes, each replaced in turn: every record once, its key in order, none lost."""
    name: str = topic("orders", partitions=1)
    proxy = keylane(f"{name}={LANES}")
    load = Load(kafka, name, 800)
    with WorkerCrew(proxy.bootstrap, name, f"roll-{uuid.uuid4()}", protocol=protocol) as crew:
        members = [crew.start() for _ in range(3)]
        crew.until_lanes(LANES, members)
        load.start()
        for _ in range(3):
            crew.until_done(len(crew.done) + 800)
            crew.stop(members.pop(0))
            members.append(crew.start())
            crew.until_lanes(LANES, members)
        load.stop()
        crew.until(lambda: len({done.offset for done in crew.done}) >= load.count)
        for member in members:
            crew.stop(member)

    offsets = Counter(done.offset for done in crew.done)
    assert sorted(offsets) == list(range(load.count)), "nothing is lost"
    assert [offset for offset, count in offsets.items() if count > 1] == [], "nothing comes twice"
    assert len(crew.began) == load.count, "no work was begun twice either"
    crew.assert_keys_in_order()


def test_kept_lanes_go_on_while_another_one_drains(kafka, keylane, topic) -> None:
    """A record of five seconds holds up its lane's move, and nothing else."""
    name: str = topic("orders", partitions=1)
    proxy = keylane(f"{name}={LANES}")
    load = Load(kafka, name, 800)
    with WorkerCrew(
        proxy.bootstrap, name, f"drain-{uuid.uuid4()}", protocol="consumer", concurrency=64
    ) as crew:
        first = crew.start()
        crew.until_lanes(LANES, [first])
        load.start()
        crew.until_done(4_000)
        for number in range(KEYS):  # one of them is on each lane, so on those that move, too
            load.produce(f"slow-{number}", 1000 * SLOW_S if number < LANES // 2 else 1, 0)
        crew.until(lambda: sum(offset >= 0 for _, offset in crew.began) > len(crew.done))
        second = crew.start()
        crew.until(lambda: crew.lanes[first] < LANES)  # lanes without work go at once
        asked_ns = now_ns()
        crew.until_lanes(LANES, [first, second])
        ended_ns = now_ns()
        load.stop()
        total = load.count + KEYS
        crew.until(lambda: len({done.offset for done in crew.done}) >= total)
        lanes_of_second = {done.lane for done in crew.done if done.member == second}

    kept = set(range(LANES)) - lanes_of_second
    assert kept and lanes_of_second
    drained_ns = max(
        done.end_ns for done in crew.done if done.member == first and done.lane in lanes_of_second
    )
    for what, until_ns in (("drain", drained_ns), ("hand-over", ended_ns)):
        during_ns = until_ns - asked_ns
        went_on = sum(
            asked_ns < done.start_ns and done.end_ns < until_ns
            for done in crew.done
            if done.lane in kept
        )
        print(f"kept lanes: {went_on} records in {during_ns / 1e9:.1f} s of the {what}")
        # In less than a second they may have had nothing to do.
        assert went_on or during_ns < 10**9, what
    assert max(Counter(done.offset for done in crew.done).values()) == 1
    crew.assert_keys_in_order()
