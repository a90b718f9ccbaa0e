"""Plays a scenario: starts all that is in it, makes things fail, and lets it come to rest.

In:    a `Scenario`.  Out: an `Outcome`: what was wrong, in words, and the story of the run.
Next:  `test_simulation` and `python -m tests.simulation`.
Pure:  no I/O, no real time.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.simulation.broker import Broker
from tests.simulation.broker_groups import OFFSET_COMMIT
from tests.simulation.cluster import Cluster, Committed, Partition
from tests.simulation.fetching import Habits
from tests.simulation.judgement import Judgement
from tests.simulation.member import Member
from tests.simulation.node import PORT, Node, simulated
from tests.simulation.own_topics import Own
from tests.simulation.producers import Producers
from tests.simulation.scenario import LOAD_S, Fault, GroupPlan, Scenario
from tests.simulation.transactor import TransactionalLife
from tests.simulation.world import World

START_S = 5.0
LOOK_S = 0.2
FAULT_S_MAX = 30.0
REST_S = 120.0
"""By then all is read and committed, whatever has happened before."""
KEY_SHARE = 0.9
"""So many records have a key."""


@dataclass
class Outcome:
    """What came of a run."""

    scenario: Scenario
    breaches: list[str]
    notes: list[str]
    counts: dict[str, int]
    story: list[str]
    fingerprint: str = ""
    """The same for the same run."""


class _Lines(logging.Handler):
    """keylane's log lines, in the story."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        where = self._world.current
        text = f"{where}: {record.levelname} {record.getMessage()}"
        if record.exc_info and (where is None or not where.is_dead):
            self._world.note_error(f"{text}: {record.exc_info[1]!r}")
        else:
            self._world.tell(text)


@dataclass
class Stage:
    """All that is there."""

    scenario: Scenario
    world: World
    cluster: Cluster
    own: Own
    brokers: dict[int, Broker]
    nodes: list[Node] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    judgement: Judgement = field(init=False)
    producers: Producers = field(init=False)
    _looked_s: float = 0.0

    def __post_init__(self) -> None:
        self.judgement = Judgement(self.world, self.cluster, self.scenario)
        self.producers = Producers(self.world, self.cluster, self.brokers, self.judgement)
        self.cluster.on_decided.append(self._note_decided)

    # Start.
    def start(self) -> None:
        """Topics, nodes, members, producers."""
        for topic in self.scenario.topics:
            self.cluster.create(topic.name, topic.partitions, is_safe=topic.is_safe)
        self.cluster.create_own("__consumer_offsets", 3)
        rules = [{"topic": each.name, "lanes": each.lanes} for each in self.scenario.topics]
        for number in range(max(1, self.scenario.nodes)):
            settings: dict[str, Any] = {"lanes": rules}
            if self.scenario.nodes:
                settings["node"] = number
            self.nodes.append(Node(self.world, number, settings))
        for node in self.nodes:
            node.start()
        for plan in self.scenario.groups:
            self._start_group(plan)
        for topic in self.scenario.topics:
            self.producers.write_on(topic, START_S + LOAD_S)

    def _start_group(self, plan: GroupPlan) -> None:
        topic = next(each for each in self.scenario.topics if each.name == plan.topic)
        bootstrap = [(node.host, PORT) for node in self.nodes]
        habits = Habits(
            group=plan.name,
            topic=plan.topic,
            partition_count=topic.partitions,
            commit_s=plan.commit_s,
            work_s=plan.work_s,
            is_committed=plan.is_committed,
            lane_topic=f"{plan.topic}.lanes-{topic.lanes}" if plan.by_lane_name else "",
            by_record=plan.by_record,
            reached=self.judgement.reached(plan.name),
        )
        for number in range(plan.members):
            member = Member(self.world, f"{plan.name}m{number}", bootstrap, habits)
            if plan.is_transactional:
                member.make_life = TransactionalLife
            self.members.append(member)
            self.world.after(START_S * self.world.rng.random(), member.start)

    def _note_decided(self, transactional_id: str, is_commit: bool) -> None:
        for member in self.members:
            if transactional_id == f"txn-{member.name}":
                staged, member.staged = member.staged, []
                member.visible += staged if is_commit else []

    # Faults.
    def fail(self, fault: Fault) -> None:
        """Make it happen."""
        self.world.tell(f"FAULT {fault.kind} {fault.which} {fault.amount}")
        DO[fault.kind](self, fault)

    def node(self, fault: Fault) -> Node:
        return self.nodes[fault.which % len(self.nodes)]

    def broker(self, fault: Fault) -> Broker:
        return self.brokers[1 + fault.which % len(self.brokers)]

    def member(self, fault: Fault) -> Member:
        return self.members[fault.which % len(self.members)]

    def partition(self, fault: Fault, *, is_safe: bool | None = None) -> Partition | None:
        found = [
            partition
            for topic in self.cluster.topics.values()
            if is_safe is None or topic.is_safe == is_safe
            for partition in topic.partitions
        ]
        return found[fault.which % len(found)] if found else None

    def _node_kill(self, fault: Fault) -> None:
        self.node(fault).kill()

    def _node_hang(self, fault: Fault) -> None:
        process = self.node(fault).process
        if process is not None and not process.is_dead and not process.is_hung:
            process.hang(0.2 + 25 * fault.amount**2)

    def _node_suspend(self, fault: Fault) -> None:
        process = self.node(fault).process
        if process is not None and not process.is_dead and not process.is_hung:
            process.suspend(0.2 + 25 * fault.amount**2)

    def _node_stop(self, fault: Fault) -> None:
        node = self.node(fault)
        process, server = node.process, node.server
        if process is None or server is None or process.is_dead or process.is_hung:
            return

        async def stop() -> None:
            await server.stop()
            self.world.tell(f"{node.name} has stopped")
            self.world.after(0.0, node.kill)

        if self.world.now_s > START_S:
            process.spawn(stop(), f"{node.name} stops")

    def _cut(self, first: str, second: str, seconds: float) -> None:
        self.world.network.cut(first, second)
        self.world.after(seconds, lambda: self.world.network.heal(first, second))

    def _node_cut_kafka(self, fault: Fault) -> None:
        for broker_id in self.brokers:
            if fault.amount < 0.5 or broker_id == 1 + fault.which % len(self.brokers):
                self._cut(self.node(fault).host, f"kafka{broker_id}", 0.2 + 20 * fault.amount)

    def _node_cut_clients(self, fault: Fault) -> None:
        for member in self.members:
            if member.process is not None:
                self._cut(self.node(fault).host, member.process.host, 0.2 + 15 * fault.amount)

    def _broker_crash(self, fault: Fault) -> None:
        broker = self.broker(fault)
        if broker.is_reachable and not broker.is_hung and len(self.cluster.down) < 2:
            broker.crash(0.5 + 10 * fault.amount)

    def _broker_hang(self, fault: Fault) -> None:
        broker = self.broker(fault)
        if broker.is_reachable and not broker.is_hung:
            broker.hang(0.2 + 20 * fault.amount)

    def _broker_slow(self, fault: Fault) -> None:
        host = self.broker(fault).host
        self.world.network.slow(host, 0.3 * fault.amount)
        self.world.after(5.0, lambda: self.world.network.slow(host, 0.0))

    def _elect(self, fault: Fault) -> None:
        partition = self.partition(fault)
        if partition is not None:
            self.cluster.elect(partition)

    def _elect_with_loss(self, fault: Fault) -> None:
        partition = self.partition(fault, is_safe=False)
        if partition is not None:
            self.cluster.elect(partition, lose=1 + int(fault.amount * 10))
            self._was_cut(partition)

    def _lose_disk(self, fault: Fault) -> None:
        partition = self.partition(fault, is_safe=False)
        if partition is not None and fault.amount < 0.5:
            self.cluster.elect(partition, lose=2**40, start=0 if fault.amount < 0.25 else None)
            self._was_cut(partition)

    def _was_cut(self, partition: Partition) -> None:
        self.judgement.cut(partition)
        self.producers.note_cut(partition)
        partition.wake()

    def _delete_records(self, fault: Fault) -> None:
        partition = self.partition(fault)
        if partition is not None:
            log = partition.log
            to = log.log_start + int((log.end - log.log_start) * fault.amount)
            log.delete_before(to)
            self.judgement.expired(partition)
            self.world.tell(f"kafka: {partition.topic}-{partition.index} begins at {to}")

    def _move_coordinator(self, fault: Fault) -> None:
        groups = [*self.cluster.groups]
        if groups:
            self.cluster.move_coordinator(groups[fault.which % len(groups)], 2 * fault.amount)

    def _lost_commit_answer(self, fault: Fault) -> None:
        for broker in self.brokers.values():
            broker.lost_answers[OFFSET_COMMIT] = 1 + int(2 * fault.amount)

    def _late_commit(self, fault: Fault) -> None:
        for broker in self.brokers.values():
            broker.late_commits = 1 + int(2 * fault.amount)

    def _lost_ack(self, fault: Fault) -> None:
        self.own.lost_acks += 1 + int(4 * fault.amount)

    def _compact(self, _fault: Fault) -> None:
        for name, logs in self.cluster.own.items():
            if "individual" in name:
                for log in logs:
                    log.compact()

    def _member_kill(self, fault: Fault) -> None:
        member = self.member(fault)
        member.kill()
        self.world.after(0.2 + 15 * fault.amount, lambda: self._again(member))

    def _again(self, member: Member) -> None:
        if member.process is not None and not member.process.is_dead:
            member.process.kill()
        member.start()

    def _member_stop(self, fault: Fault) -> None:
        member = self.member(fault)
        member.stop()
        self.world.after(2 + 5 * fault.amount, lambda: self._again(member))

    def _member_hang(self, fault: Fault) -> None:
        process = self.member(fault).process
        if process is not None and not process.is_dead and not process.is_hung:
            process.hang(0.2 + 20 * fault.amount)

    def _member_cut(self, fault: Fault) -> None:
        process = self.member(fault).process
        if process is not None:
            for node in self.nodes:
                self._cut(node.host, process.host, 0.2 + 15 * fault.amount)

    def _member_seek(self, fault: Fault) -> None:
        member = self.member(fault)
        life, process = member.life, member.process
        if life is not None and process is not None and member.make_life is None:
            process.post(lambda: life.seek(1 + int(10 * fault.amount)))

    def _wall_clock(self, fault: Fault) -> None:
        process = self.node(fault).process
        if process is not None:
            process.wall_s += (fault.amount - 0.5) * 7200

    def _reset_offset(self, _fault: Fault) -> None:
        """An admin sets Kafka's own offset of a group that has no members back, at the broker."""
        for name, group in self.cluster.groups.items():
            if not group.twin.members and group.offsets:
                place, found = next(iter(group.offsets.items()))
                to = found.offset // 2
                self.judgement.was_reset(name, place, to)
                self.cluster.commit(name, *place, Committed(to))

    # Rest.
    def heal(self) -> None:
        """All that was hung, cut or dead comes back by itself; the rest is told to."""
        for member in self.members:
            if member.process is None or member.process.is_dead:
                member.start()

    def is_calm(self) -> bool:
        """The load and all faults are over."""
        return (
            self.world.now_s > START_S + LOAD_S
            and not self.cluster.down
            and not self.world.network.has_faults
            and not any(broker.is_hung for broker in self.brokers.values())
            and not any(process.is_hung for process in self.world.processes)
        )

    def is_at_rest(self) -> bool:
        """All is read and committed."""
        if self.world.now_s < self._looked_s + LOOK_S:
            return False
        self._looked_s = self.world.now_s
        return not self.producers.has_open and self.judgement.is_complete(self.members)


DO: dict[str, Callable[[Stage, Fault], None]] = {
    name[1:]: method
    for name, method in vars(Stage).items()
    if name.startswith("_") and callable(method)
}


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Collect no garbage by chance: when it is looked for is the same in each run."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_garbage_kept()
def play(scenario: Scenario, *, level: int = logging.ERROR) -> Outcome:
    """Run it to its end."""
    world = World(scenario.seed)
    cluster = Cluster(world, scenario.brokers)
    logger, handler = logging.getLogger("keylane"), _Lines(world)
    before = logger.level, logger.propagate
    with simulated(world, cluster) as own:
        brokers = {number: Broker(cluster, number) for number in cluster.broker_ids}
        world.brokers = {broker.host: broker for broker in brokers.values()}
        stage = Stage(scenario, world, cluster, own, brokers)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
        try:
            stage.start()
            for fault in scenario.faults:
                world.after(START_S + fault.at_s, partial(stage.fail, fault))
            world.run(START_S + LOAD_S + FAULT_S_MAX, until=stage.is_calm)
            stage.heal()
            world.run(world.now_s + REST_S, until=stage.is_at_rest)
            gc.collect(0)  # futures say now that their failure was noticed by none
            breaches, notes, counts = stage.judgement.conclude(stage.members)
        finally:
            world.close()
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]
    return Outcome(
        scenario, [*world.errors, *breaches], notes, counts, world.story,
        f"{world.steps} {world.now_s:.6f} {sorted(counts.items())}",
    )  # fmt: skip
