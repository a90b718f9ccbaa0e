"""A group under a steady rate for an hour: memory flat, latency flat, nothing lost.

`python -m tests.long.steady --minutes 60 --nodes 2`: prints a line a minute, and the verdict: no
record lost or repeated, no node's memory above that of the first tenth by more than a tenth, the
median latency of the last tenth no more than twice that of the first. Exit code 1 when one of
these does not hold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.harness import Group
from tests.integration.keylane_process import KeylaneProcess

KEYS: Final = [f"key-{number}" for number in range(50)]
MEMORY_GROWTH_MAX: Final = 1.1
LATENCY_GROWTH_MAX: Final = 2.0
SHARE: Final = 10
"""The first and the last tenth of the minutes are compared; the first minute warms up."""


@dataclass(frozen=True, slots=True)
class Minute:
    """Figures of one minute."""

    latency_ms: list[float]
    """Times from the producer's call to the member's report of the record."""
    rss_mib: list[float]
    """Resident memory by node, at the minute's end."""

    def line(self, number: int) -> str:
        """Return a line for people."""
        p50, p99 = quantile(self.latency_ms, 0.5), quantile(self.latency_ms, 0.99)
        rss = " ".join(f"{each:.0f}" for each in self.rss_mib)
        count = len(self.latency_ms)
        return f"minute {number}: {count} records, p50 {p50:.1f} ms, p99 {p99:.1f} ms, {rss} MiB"


def quantile(values: list[float], share: float) -> float:
    """Return a quantile of a list in any order; 0 for none."""
    return sorted(values)[int(share * (len(values) - 1))] if values else 0.0


class TimedGroup(Group):
    """Knows how long each record was under way."""

    def __init__(self, bootstrap: str, topic: str, group: str, sent_s: dict[str, float]) -> None:
        super().__init__(bootstrap, topic, group, session_timeout_ms=10_000)
        self._sent_s = sent_s
        self.latency_ms: list[float] = []

    def _sight(
        self, name: str, at_s: float, lane: int, offset: int, key: str | None, value: str
    ) -> None:
        super()._sight(name, at_s, lane, offset, key, value)
        self.latency_ms.append((time.monotonic() - self._sent_s[value]) * 1000)


class TimedProducer:
    """Numbered values per key at a steady rate, directly to Kafka."""

    def __init__(self, bootstrap: str, topic: str, records_per_s: float) -> None:
        self.sent_s: dict[str, float] = {}
        self._topic, self._interval_s = topic, len(KEYS) / records_per_s
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True}
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait until everything is acknowledged."""
        self._stopping.set()
        self._thread.join()
        left = self._producer.flush(120)
        assert left == 0, f"{left} records were never acknowledged"

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(self._interval_s):
            for key in KEYS:
                value = f"{key}:{number}"
                self.sent_s[value] = time.monotonic()
                self._producer.produce(self._topic, key=key, value=value)
            self._producer.poll(0)
            number += 1


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has no memory")


def run(minute_count: int, node_count: int, records_per_s: float, folder: Path) -> list[Minute]:
    """Minute by minute; asserts that nothing was lost or repeated."""
    minutes: list[Minute] = []
    with EmbeddedKafka(folder / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("orders", 4, 1)], operation_timeout=30)["orders"].result(60)
        proxies = [
            KeylaneProcess(
                broker.bootstrap,
                ["orders=8"],
                log_path=folder / f"keylane-{number}.log",
                args=["--node", str(number)] if node_count > 1 else [],
                environment={"KEYLANE_LOG": "info"},
            ).start()
            for number in range(node_count)
        ]
        producer = TimedProducer(broker.bootstrap, "orders", records_per_s)
        with TimedGroup(proxies[0].bootstrap, "orders", "g", producer.sent_s) as group:
            for number in range(6):
                group.add(("aiokafka", "confluent")[number % 2])
            group.wait_for_lanes(32)
            producer.start()
            pause = threading.Event()
            for number in range(minute_count):
                pause.wait(60)
                taken, group.latency_ms = group.latency_ms, []
                minutes.append(Minute(taken, [rss_mib(proxy.pid) for proxy in proxies]))
                print(minutes[-1].line(number), flush=True)
            producer.stop()
            group.wait_for_values(producer.sent_s, timeout_s=180)
            group.wait_for_commits(timeout_s=60)
        assert [proxy.stop() for proxy in proxies] == [0] * node_count
        assert not any("Traceback" in proxy.log for proxy in proxies)
        group.seen.assert_nothing_committed_again()
        repeated = [value for value, count in group.seen.values().items() if count > 1]
        assert not repeated, f"{len(repeated)} records were delivered again"
    return minutes


def judge(minutes: list[Minute]) -> list[str]:
    """Return the figures that are not flat."""
    share = max(1, len(minutes) // SHARE)
    first, last = minutes[1 : 1 + share], minutes[-share:]
    faults = []
    for node in range(len(minutes[0].rss_mib)):
        before = statistics.median(minute.rss_mib[node] for minute in first)
        after = statistics.median(minute.rss_mib[node] for minute in last)
        if after > before * MEMORY_GROWTH_MAX:
            faults.append(f"node {node} grew from {before:.0f} to {after:.0f} MiB")
    before, after = (
        quantile([each for minute in part for each in minute.latency_ms], 0.5)
        for part in (first, last)
    )
    if after > before * LATENCY_GROWTH_MAX:
        faults.append(f"the median latency grew from {before:.1f} to {after:.1f} ms")
    return faults


def main() -> int:
    """Run and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rate", type=float, default=200, help="records per second")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            faults = judge(run(args.minutes, args.nodes, args.rate, Path(folder)))
        except AssertionError as error:
            faults = [str(error)]
    for fault in faults:
        print(f"FAILED: {fault}")
    if not faults:
        print("memory flat, latency flat, nothing lost, nothing repeated")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
