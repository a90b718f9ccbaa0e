"""One run of chaos: nodes, brokers, disks and members are hit in turn, groups go on under load.

In:    a plan, a running cluster of brokers.  Out: histories of groups and cluster.
All waits have a bound and say what they waited for.

Topics are those of `chaos_topics`. Groups: `own` asks for them by their own names, `lane` by lane
names; `still` reads `quiet`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from keylane.config.node import split_address
from keylane.embedded import EmbeddedKafka
from keylane.embedded.child import ChildEnded
from keylane.embedded.ports import find_free_port
from keylane.errors import KafkaUnavailable
from tests.integration.keylane_process import BROKER_PORTS
from tests.integration.nodes import Nodes, coordinator_node
from tests.long.chaos_cluster import ChaosCluster
from tests.long.chaos_end import ask_positions, await_stable_offsets, read_logs
from tests.long.chaos_group import ChaosGroup, ChaosProducer, Waiter
from tests.long.chaos_history import (
    ClusterHistory,
    Delivery,
    GroupHistory,
    Log,
    Place,
    Produced,
)
from tests.long.chaos_hits import KINDS, ChaosHits
from tests.long.chaos_memory import Memory
from tests.long.chaos_topics import (
    BUSY,
    KEYS,
    LANES,
    NAME_LANES,
    OWN_LANES,
    PARTITIONS,
    SAFE,
    empty_history,
    topic_of,
)
from tests.long.group_book import stall
from tests.long.tap import Tap

PROGRESS_S: Final = 60.0
START_S: Final = 120.0
END_S: Final = 60.0
STUCK_MAX: Final = 3
"""After so many rounds in a row that did not settle the run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of one run."""

    rounds: int
    """Number of rounds, unless `minutes` are over before."""
    nodes: int
    seed: int
    minutes: float = 0.0
    """0: only rounds count."""
    calm_s: tuple[float, float] = (0.2, 1.0)
    """Seconds between two hits."""
    kinds: tuple[str, ...] = KINDS
    rate: int = 120
    """Records per second, over all topics."""
    heap_mb: int = 256
    own: tuple[str, ...] = ("confluent", "aiokafka", "kafka-python", "confluent")
    """Libraries of the members of each group."""
    lane: tuple[str, ...] = ("confluent", "aiokafka", "kafka-python")
    still: tuple[str, ...] = ("confluent", "confluent")


@dataclass(slots=True, kw_only=True)
class Event:
    """One hit, and how long the groups stood still for it."""

    number: int
    kind: str
    what: str = ""
    is_coordinator: bool | None = None
    """Whether clients found the first group's coordinator at the node that was hit."""
    at_s: float = 0.0
    acted_s: float = 0.0
    """Seconds from the first signal until the target served again."""
    settled_s: float = 0.0
    """Seconds from the first signal until every lane had moved after the end of the hit."""
    all_s: float = 0.0
    lane_s: float = 0.0
    machine_load: float = 0.0


class ChaosRun:
    """Plays a plan; `events`, `breaches` and histories are filled in on the way."""

    def __init__(self, plan: Plan, kafka: EmbeddedKafka, folder: Path) -> None:
        self.plan, self._kafka, self._folder = plan, kafka, folder
        self._chance = random.Random(plan.seed)
        self._cluster = ChaosCluster(kafka, self._chance)
        self._waiter, self._pause = Waiter(), threading.Event()
        self._started_s = time.monotonic()
        self._taps: list[Tap] = []
        self._groups: dict[str, ChaosGroup] = {}
        self._logs: dict[tuple[str, int], Log] = {}
        self.events: list[Event] = []
        self.memory = Memory()
        self.breaches: list[str] = []
        self._producer = ChaosProducer(kafka.bootstrap, BUSY, KEYS, rate=plan.rate)

    # -- histories --------------------------------------------------------------------------

    def cluster_history(self) -> ClusterHistory:
        """Return Kafka's records; to be called when the run is over."""
        return ClusterHistory(
            produced=self._producer.produced,
            logs=self._logs,
            safe_topics=SAFE,
            seen=[
                Produced(
                    each.place.topic,
                    each.place.lane % PARTITIONS[each.place.topic],
                    each.offset,
                    each.key,
                    each.number,
                    each.at_s,
                )
                for group in self._groups.values()
                for each in group.events
                if isinstance(each, Delivery) and each.place.topic not in SAFE
            ],
        )

    def group_histories(self) -> list[GroupHistory]:
        """Return the groups' events; to be called when the run is over."""
        found = []
        for name, group in self._groups.items():
            history = empty_history(name)
            history.events += group.events
            for tap in self._taps:
                for owner, events in tap.events.items():
                    if owner == name or owner.startswith(f"{name}-"):
                        history.events += events
            found.append(history)
        return found

    # -- the play ---------------------------------------------------------------------------

    def play(self) -> None:
        """Start everything, do all rounds, wait for the end. Raises: AssertionError, stuck."""
        with ExitStack() as stack:
            stack.callback(self._measure)
            stack.callback(self._cluster.brokers.resume_all)
            self._make_topics()
            self._start_nodes(stack)
            self._start_groups(stack)
            stack.callback(self._producer.stop)
            self._producer.start()
            self._player = ChaosHits(
                cluster=self._cluster,
                nodes=self._nodes,
                groups=self._groups,
                producer=self._producer,
                chance=self._chance,
            )
            self._say("waiting for all lanes")
            self._settle(START_S)
            stuck = 0
            for number, kind in enumerate(self._kinds()):
                if self._is_over(number):
                    break
                is_settled = self._round(number, kind)
                stuck = 0 if is_settled else stuck + 1
                if stuck >= STUCK_MAX:
                    self.breaches.append(f"stuck for {stuck} rounds, the run ends")
                    break
            self._finish()

    def _make_topics(self) -> None:
        create = self._cluster.create
        create("safe", PARTITIONS["safe"], 3, min_insync_replicas="2")
        create("quiet", PARTITIONS["quiet"], 3, min_insync_replicas="2")
        create(
            "weak",
            PARTITIONS["weak"],
            2,
            min_insync_replicas="1",
            unclean_leader_election_enable="true",
        )
        create("lone", PARTITIONS["lone"], 1, min_insync_replicas="1")

    def _start_nodes(self, stack: ExitStack) -> None:
        """Start nodes that advertise the tap's addresses in place of their own."""
        ports = [find_free_port(in_a_row=BROKER_PORTS) for _ in range(self.plan.nodes)]
        self._nodes = Nodes(
            self._kafka.bootstrap,
            [f"{topic}={OWN_LANES}" for topic in BUSY],
            folder=self._folder,
            count=self.plan.nodes,
            environments=[
                {"KEYLANE_ADVERTISE_PORT": str(port), "KEYLANE_NODE_SESSION_TIMEOUT_MS": "6000"}
                for port in ports
            ],
        )
        for first, node in zip(ports, self._nodes.processes, strict=True):
            listen_port = split_address(node.listen)[1]
            ways = {first + n: listen_port + n for n in range(BROKER_PORTS)}
            tap = Tap(ways, topic_of, followed=frozenset(BUSY) - SAFE)
            self._taps.append(stack.enter_context(tap))
        stack.callback(self._stop_nodes)
        self._nodes.start()
        self._bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    def _stop_nodes(self) -> None:
        for number, code in enumerate(self._nodes.stop()):
            if code != 0:
                self.breaches.append(f"node {number} ended with {code}")
            if "Traceback" in self._nodes[number].log:
                self.breaches.append(f"node {number} has a Traceback in its log")
        self.breaches += [fault for tap in self._taps for fault in tap.faults[:3]]

    def _start_groups(self, stack: ExitStack) -> None:
        members = self._folder / "members"
        members.mkdir(exist_ok=True)
        names = {
            "own": BUSY,
            "lane": [f"{topic}.lanes-{NAME_LANES}" for topic in BUSY],
            "still": [f"quiet.lanes-{OWN_LANES}"],
        }
        for name, topics in names.items():
            group = ChaosGroup(
                name,
                topics,
                bootstrap=self._bootstrap,
                folder=members,
                topic_of=topic_of,
                waiter=self._waiter,
            )
            self._groups[name] = group
            stack.callback(group.stop)
        for key in KEYS:
            self._producer.write("quiet", key, 0)
        self._producer.flush()
        for name, group in self._groups.items():
            for library in getattr(self.plan, name):
                group.add(library)

    def _kinds(self) -> Iterator[str]:
        """Yield kinds without end, each as often as any other, in random order."""
        while True:
            bag = list(self.plan.kinds)
            self._chance.shuffle(bag)
            yield from bag

    def _is_over(self, number: int) -> bool:
        if self.plan.minutes:
            return time.monotonic() - self._started_s > 60 * self.plan.minutes
        return number >= self.plan.rounds

    def _round(self, number: int, kind: str) -> bool:
        """One hit; whether all settled after it."""
        down_s = self._player.span(kind)
        calm_s = self._chance.uniform(*self.plan.calm_s)
        event = Event(number=number, kind=kind)
        self.events.append(event)
        coordinator = self._coordinator() if kind.startswith("node-") else -1
        event.at_s = time.monotonic()
        try:
            event.what = self._player.act(kind, down_s)
            event.acted_s = time.monotonic() - event.at_s
            if coordinator >= 0:
                event.is_coordinator = event.what.startswith(f"{coordinator} ")
            self._settle(PROGRESS_S)
        except (AssertionError, KafkaException, KafkaUnavailable, ChildEnded) as error:
            self.breaches.append(f"{number}: {kind} {event.what}: {error}")
            self._say(f"{number}: {kind} {event.what}: {error}")
            self._recover()
            return False
        event.settled_s = time.monotonic() - event.at_s
        event.machine_load = os.getloadavg()[0]
        self._check_members()
        self._say(
            f"{number}: {kind} {event.what}: acted {event.acted_s:.1f} s, settled after "
            f"{event.settled_s:.1f} s, load {event.machine_load:.0f}"
        )
        self._pause.wait(calm_s)  # what comes late is this event's, too
        self.memory.note(self._nodes.processes, time.monotonic())
        return True

    def _coordinator(self) -> int:
        """Return the node at which clients find the first group; -1: unknown."""
        try:
            return coordinator_node(self._bootstrap, "own")
        except KafkaException as error:
            self._say(f"the coordinator is unknown: {error}")
            return -1

    def _recover(self) -> None:
        """Restart or resume each process that a broken round left dead or hung."""
        self._cluster.brokers.resume_all()
        self._kafka.start()
        self._nodes.start()
        self._check_members()

    def _settle(self, timeout_s: float) -> None:
        """Wait until replicas are in sync, and each lane has handed out a record of now."""
        self._cluster.wait_in_sync(timeout_s=timeout_s)
        first = self._producer.cycle + 1
        wanted = {
            (name, Place(topic, lane))
            for name in ("own", "lane")
            for topic in BUSY
            for lane in range(PARTITIONS[topic] * LANES[name].count)
        }

        def is_done() -> bool:
            moved = {each for each in wanted if self._groups[each[0]].newest[each[1]] >= first}
            wanted.difference_update(moved)
            return not wanted

        if not self._waiter.wait(is_done, timeout_s=timeout_s):
            left = [f"{name} {place.topic} {place.lane}" for name, place in sorted(wanted)]
            raise AssertionError(f"stuck: no record in {timeout_s:g} s of {', '.join(left)}")

    def _check_members(self) -> None:
        """A member that ended by itself is replaced, and its end is a breach."""
        for group in self._groups.values():
            for said in group.ended():
                self.breaches.append(f"{said}, see members/")
                group.add(said.split()[0].removeprefix(f"{group.name}-").rpartition("-")[0])

    # -- the end ----------------------------------------------------------------------------

    def _finish(self) -> None:
        """Wait until each record is handed out; ask each position again; expect no lag at Kafka."""
        left = self._producer.stop()
        refused = [each for each in self._producer.refused if each.split(":")[0] in SAFE]
        if left or refused:
            self.breaches.append(f"{left} records without an answer, refused {refused[:3]}")
        self._cluster.wait_in_sync()
        self._logs = read_logs(self._kafka.bootstrap)
        if not self._wait_all_handed_out():
            self._say("not all records were handed out")
        self._pause.wait(2.0)  # the last commits
        for name, group in self._groups.items():
            lanes = [
                TopicPartition(topic, index)
                for topic in group.topics
                for index in range(PARTITIONS[topic_of(topic) or ""] * LANES[name].count)
            ]
            self.breaches += ask_positions(self._bootstrap, name, lanes)
        ends = {n: max(self._logs["safe", n].records) + 1 for n in range(PARTITIONS["safe"])}
        for name in ("own", "lane"):
            self.breaches += await_stable_offsets(self._cluster.admin, name, "safe", ends)

    def _wait_all_handed_out(self) -> bool:
        """Wait; return whether both groups came to all that Kafka holds."""
        wanted = {
            (name, topic, partition, offset)
            for name in ("own", "lane")
            for (topic, partition), log in self._logs.items()
            if topic in BUSY
            for offset in log.records
        }
        places = dict.fromkeys(("own", "lane"), 0)

        def is_done() -> bool:
            for name, place in places.items():
                events = self._groups[name].events
                for each in events[place:]:
                    if isinstance(each, Delivery):
                        topic, lane = each.place
                        wanted.discard((name, topic, lane % PARTITIONS[topic], each.offset))
                places[name] = len(events)
            return not wanted

        return self._waiter.wait(is_done, timeout_s=END_S)

    def _measure(self) -> None:
        """Measure how long the group `own` stood still on the safe topic, event by event."""
        if "own" not in self._groups:
            return
        found = sorted(
            (each.at_s, each.place.lane)
            for each in self._groups["own"].events
            if isinstance(each, Delivery) and each.place.topic == "safe"
        )
        lanes = range(PARTITIONS["safe"] * OWN_LANES)
        for event in self.events:
            end_s = event.at_s + (event.settled_s or PROGRESS_S)
            stood = stall(found[bisect_left(found, (event.at_s, -1)) :], lanes, event.at_s, end_s)
            event.all_s, event.lane_s = stood.all_s, stood.lane_s

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started_s:7.1f} {text}", flush=True)
