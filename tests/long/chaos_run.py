"""One run of chaos: nodes and brokers are hit in turn, a group under steady load goes on.

In:    a plan, a running cluster of brokers.  Out: what the members told, and the events.
Next:  `nodes` judges and prints it.
Shell: child processes, clocks. All waits have a bound and say what they waited for.
"""

from __future__ import annotations

import os
import random
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic, TopicPartition

from keylane.embedded import EmbeddedKafka
from tests.integration.harness import Seen
from tests.integration.nodes import Brokers, Nodes, TimedGroup, coordinator_node
from tests.long.group_book import Told, deliveries, stall

PARTITIONS: Final = 3
LANES: Final = 16
LANE_COUNT: Final = PARTITIONS * LANES
KEYS: Final = tuple(f"key-{number}" for number in range(480))
"""Ten per lane: each lane gets one several times a second."""
LIBRARIES: Final = ("aiokafka", "confluent")
TICK_S: Final = 0.05
LOG_LEVEL: Final = 2
"""Of syslog: connections that are refused are what is played here, they need no lines."""
KINDS: Final = (
    "node-kill",
    "node-hang",
    "node-restart",
    "broker-kill",
    "broker-hang",
    "broker-restart",
)
NODE_HANG_S: Final = (7.0, 24.0)
"""Longer than the nodes' session timeout of 6 s."""
BROKER_HANG_S: Final = (2.0, 12.0)
"""Around the brokers' session timeout of 3 s, which the embedded cluster sets."""
DOWN_S: Final = (0.0, 10.0)
"""How long what was killed stays away: shorter and longer than its session."""
CALM_S: Final = (1.0, 5.0)
PROGRESS_TIMEOUT_S: Final = 150.0
START_TIMEOUT_S: Final = 150.0
END_TIMEOUT_S: Final = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run does."""

    rounds: int
    nodes: int
    seed: int
    members: int = 12
    rate: int = 300
    """Records per second."""
    kinds: tuple[str, ...] = ()
    """Only these; empty: all."""
    heap_mb: int = 384
    is_numbered: bool = True
    """False: nodes that do not know of each other; a run of them must fail."""
    topic: str = "orders"
    group: str = "g-orders"
    member_options: dict[str, Any] = field(
        default_factory=lambda: {
            "assignor": "roundrobin",
            "session_timeout_ms": 10_000,
            "request_timeout_ms": 12_000,
        }
    )


@dataclass(slots=True, kw_only=True)
class Event:
    """One hit, and how long the group stood still for it."""

    number: int
    kind: str
    target: int
    down_s: float
    is_coordinator: bool | None = None
    """Whether clients found the group's coordinator at this node; None: not asked, not told."""
    at_s: float = 0.0
    acted_s: float = 0.0
    """From the signal until the process served again, or went on."""
    settled_s: float = 0.0
    """From the signal until every lane had moved after that."""
    all_s: float = 0.0
    lane_s: float = 0.0
    lane: int = -1
    machine_load: float = 0.0
    """Of the last minute, as the machine tells it: figures of a busy one are not keylane's."""


class SteadyProducer:
    """Numbered values per key, directly to Kafka, a few every tick; each key's in one order."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._stopping = threading.Event()
        self._topic, self._per_tick = topic, max(1, round(rate * TICK_S))
        self.cycle = 0
        """The number that keys get now."""
        self.refused: list[str] = []
        self.produced = 0
        self._place = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,  # librdkafka spins through the last millisecond of a wait
                "log_level": LOG_LEVEL,
                "partitioner": "murmur2_random",
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def abandon(self) -> None:
        """Stop, whatever is acknowledged; safe to call after `stop`."""
        self._stopping.set()
        self._thread.join()

    def stop(self) -> set[str]:
        """Stop; all values, once all of them are acknowledged. Raises: AssertionError."""
        self.abandon()
        left = self._producer.flush(120)
        assert left == 0, f"{left} records were never acknowledged"
        assert not self.refused, f"records were refused: {self.refused[:5]}"
        full = {f"{key}:{number}" for number in range(self.cycle) for key in KEYS}
        return full | {f"{key}:{self.cycle}" for key in KEYS[: self._place]}

    def _run(self) -> None:
        while not self._stopping.wait(TICK_S):
            for _ in range(self._per_tick):
                key = KEYS[self._place]
                self._producer.produce(
                    self._topic, key=key, value=f"{key}:{self.cycle}", on_delivery=self._answered
                )
                self.produced += 1
                self._place = (self._place + 1) % len(KEYS)
                self.cycle += self._place == 0
            self._producer.poll(0)

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        del message
        if error is not None:
            self.refused.append(str(error))


class ChaosRun:
    """Plays a plan; `told`, `events` and `breaches` are filled in on the way."""

    def __init__(self, plan: Plan, kafka: EmbeddedKafka, folder: Path) -> None:
        self.plan, self._kafka, self._folder = plan, kafka, folder
        self._chance = random.Random(plan.seed)
        self._brokers = Brokers(kafka)
        self._started_s = time.monotonic()
        self.told: list[Told] = []
        self.events: list[Event] = []
        self.breaches: list[str] = []
        self.produced = 0

    def play(self) -> None:
        """Start everything, do all rounds, wait for the end. Raises: AssertionError, stuck."""
        plan, chaos = self.plan, self._folder
        admin = AdminClient({"bootstrap.servers": self._kafka.bootstrap, "log_level": LOG_LEVEL})
        wanted = NewTopic(plan.topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([wanted], operation_timeout=30)[plan.topic].result(60)
        members = chaos / "members"
        members.mkdir(exist_ok=True)
        with ExitStack() as stack:
            stack.callback(self._brokers.resume_all)
            rules = [f"{plan.topic}={LANES}"]
            nodes = Nodes(
                self._kafka.bootstrap,
                rules,
                folder=chaos,
                count=plan.nodes,
                is_numbered=plan.is_numbered,
            )
            self._nodes = stack.enter_context(nodes)
            self._group = stack.enter_context(
                TimedGroup(
                    nodes.bootstrap,
                    plan.topic,
                    plan.group,
                    log_folder=members,
                    **plan.member_options,
                )
            )
            self.told = self._group.told
            for number in range(plan.members):
                self._group.add(LIBRARIES[number % 2])
            self._producer = SteadyProducer(self._kafka.bootstrap, plan.topic, plan.rate)
            stack.callback(self._measure)
            stack.callback(self._stop_producer)
            self._say(f"waiting for {LANE_COUNT} lanes at {plan.members} members")
            self._group.wait_for_lanes(LANE_COUNT, timeout_s=START_TIMEOUT_S)
            self._wait_for_progress("the start", START_TIMEOUT_S)
            for kind in self._kinds():
                self._round(kind)
            self._finish(admin)

    def _kinds(self) -> list[str]:
        """As many as rounds, each kind as often as any other, in an order of chance."""
        kinds: list[str] = []
        while len(kinds) < self.plan.rounds:
            bag = list(self.plan.kinds or KINDS)
            self._chance.shuffle(bag)
            kinds += bag
        return kinds[: self.plan.rounds]

    def _round(self, kind: str) -> None:
        spans = {"node-hang": NODE_HANG_S, "broker-hang": BROKER_HANG_S}
        target = self._chance.randrange(self.plan.nodes if kind.startswith("node") else 3)
        down_s = round(self._chance.uniform(*spans.get(kind, DOWN_S)), 1)
        calm_s = self._chance.uniform(*CALM_S)
        event = Event(number=len(self.events), kind=kind, target=target, down_s=down_s)
        if kind.startswith("node") and self.plan.nodes > 1:
            event.is_coordinator = self._coordinator() == target
        pause = threading.Event()
        event.at_s = time.monotonic()
        self.events.append(event)
        self._say(f"{event.number}: {kind} {target} for {down_s} s {event.is_coordinator or ''}")
        self._act(event, lambda: pause.wait(down_s))
        event.acted_s = time.monotonic() - event.at_s
        self._wait_for_progress(f"{event.number}: {kind} {target}", PROGRESS_TIMEOUT_S)
        event.settled_s = time.monotonic() - event.at_s
        event.machine_load = os.getloadavg()[0]
        pause.wait(calm_s)  # what comes late is this event's, too
        self._check_members()
        self._say(
            f"{event.number}: acted {event.acted_s:.1f} s, every lane moved after "
            f"{event.settled_s:.1f} s; delivered {len(self._group.seen.sightings)}"
        )

    def _act(self, event: Event, wait: Callable[[], object]) -> None:
        """Hit, wait, and put it right again."""
        place = event.target
        if event.kind.startswith("node"):
            node = self._nodes[place]
            if event.kind == "node-hang":
                node.pause()
                wait()
                node.resume()
                return
            if event.kind == "node-kill":
                node.kill()
            else:
                code = node.stop()
                if code != 0:
                    self.breaches.append(f"{event.number}: node {place} ended with {code}")
            wait()
            node.start()
            return
        if event.kind == "broker-hang":
            self._brokers.pause(place)
            wait()
            self._brokers.resume(place)
            return
        if event.kind == "broker-kill":
            self._brokers[place].kill()
        else:
            self._brokers[place].stop()
        wait()
        self._kafka.start()

    def _coordinator(self) -> int:
        try:
            return coordinator_node(self._nodes.bootstrap, self.plan.group)
        except KafkaException as error:
            self._say(f"the coordinator is not told: {error}")
            return -1

    def _wait_for_progress(self, after: str, timeout_s: float) -> None:
        """Wait until each lane has delivered a value that is produced from now on."""
        first = self._producer.cycle + 1
        left = set(range(LANE_COUNT))
        position = len(self._group.seen.sightings)

        def every_lane_moved(seen: Seen) -> bool:
            nonlocal position
            for sighting in seen.sightings[position:]:
                if int(sighting.value.rpartition(":")[2]) >= first:
                    left.discard(sighting.lane)
            position = len(seen.sightings)
            return not left

        try:
            what = f"all lanes to move after {after}"
            self._group.wait(every_lane_moved, timeout_s=timeout_s, what=what)
        except AssertionError as error:
            holders = {lane: self._holders(lane) for lane in sorted(left)}
            error.add_note(f"lanes and who holds them: {holders}")
            raise AssertionError(f"{error}; lanes without progress: {holders}") from error

    def _holders(self, lane: int) -> list[str]:
        lanes = self._group.seen.lanes
        return [name for name, held in list(lanes.items()) if lane in held]

    def _check_members(self) -> None:
        for name, process in self._group.processes.items():
            code = process.poll()
            if code is not None and f"{name} " not in " ".join(self.breaches):
                self.breaches.append(f"{name} ended by itself with {code}, see members/{name}.log")
        assert any(p.poll() is None for p in self._group.processes.values()), "no member is left"

    def _finish(self, admin: AdminClient) -> None:
        """All produced values seen and committed, Kafka's own group offset at the log end."""
        values = self._producer.stop()
        self._say(f"waiting for the last of {len(values)} values")
        self._group.wait_for_values(values, timeout_s=END_TIMEOUT_S)
        self._group.wait_for_commits(timeout_s=END_TIMEOUT_S)
        self._wait_for_lag(admin)
        self._group.stop()
        for number, code in enumerate(self._nodes.stop()):
            if code != 0:
                self.breaches.append(f"node {number} ended with {code}")
        for number in range(self.plan.nodes):
            if "Traceback" in self._nodes[number].log:
                self.breaches.append(f"node {number} has a Traceback in its log")

    def _wait_for_lag(self, admin: AdminClient) -> None:
        """Until the stable offset of each partition is the log end, at Kafka itself."""
        topic, group = self.plan.topic, self.plan.group
        ends = self._ends()
        deadline_s = time.monotonic() + END_TIMEOUT_S
        pause = threading.Event()
        while True:
            wanted = ConsumerGroupTopicPartitions(group)
            answer = admin.list_consumer_group_offsets([wanted])[group].result(30)
            stands = {p.partition: p.offset for p in answer.topic_partitions if p.topic == topic}
            if stands == ends:
                return
            if time.monotonic() > deadline_s:
                self.breaches.append(f"group offsets {stands} never came to the ends {ends}")
                return
            pause.wait(0.5)  # Kafka tells no event of it

    def _ends(self) -> dict[int, int]:
        asker = Consumer(
            {
                "bootstrap.servers": self._kafka.bootstrap,
                "group.id": "ends",
                "log_level": LOG_LEVEL,
            }
        )
        try:
            places = [TopicPartition(self.plan.topic, number) for number in range(PARTITIONS)]
            return {p.partition: asker.get_watermark_offsets(p, timeout=30)[1] for p in places}
        finally:
            asker.close()

    def _stop_producer(self) -> None:
        self._producer.abandon()
        self.produced = self._producer.produced

    def _measure(self) -> None:
        """How long the group stood still, from each event to the next."""
        found = [(each.at_s, each.lane) for each in deliveries(self.told)]
        if not found:
            return
        ends = [event.at_s for event in self.events[1:]]
        if self.events:
            last = self.events[-1]
            ends.append(last.at_s + (last.settled_s or PROGRESS_TIMEOUT_S))
        for event, end_s in zip(self.events, ends, strict=True):
            first = max(0, bisect_left(found, (event.at_s, -1)))
            stood = stall(found[first:], range(LANE_COUNT), event.at_s, end_s)
            event.all_s, event.lane_s, event.lane = stood.all_s, stood.lane_s, stood.lane

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started_s:7.1f} {text}", flush=True)
