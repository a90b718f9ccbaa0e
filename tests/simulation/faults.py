"""Faults that may occur in a run, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from keylane.config.own_names import JOURNAL_TOPIC
from keylane.journal.openings import ALL
from tests.simulation.admin import ADMIN
from tests.simulation.broker_groups import OFFSET_COMMIT
from tests.simulation.broker_members import CONSUMER_HEARTBEAT
from tests.simulation.node import RESTART_S
from tests.simulation.traps import APPEND, BACK, BEAT, INTENT, POINTS
from tests.simulation.waits import between

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Partition
    from tests.simulation.member import Member
    from tests.simulation.scenario import Fault
    from tests.simulation.stage import Stage
    from tests.simulation.world import Process

OUTLIVES_S = 2.0
"""A node that is to be replaced hangs so much longer than its session."""
LONG_CUT_S = 45.0
Do = Callable[["Stage", "Fault"], None]


# Nodes.
def node_kill(stage: Stage, fault: Fault) -> None:
    stage.node(fault).kill()


def hang(stage: Stage, process: Process | None, seconds: float, *, asleep: bool = False) -> None:
    """Hang a node, as by SIGSTOP, or as on a machine that sleeps."""
    if process is not None and not process.is_dead and not process.is_hung:
        stage.trouble(process.host, seconds)
        (process.suspend if asleep else process.hang)(seconds)


def node_hang(stage: Stage, fault: Fault) -> None:
    hang(stage, stage.node(fault).process, 0.2 + 25 * fault.amount**2)


def node_suspend(stage: Stage, fault: Fault) -> None:
    hang(stage, stage.node(fault).process, 0.2 + 25 * fault.amount**2, asleep=True)


def node_stop(stage: Stage, fault: Fault) -> None:
    node = stage.node(fault)
    process, server = node.process, node.server
    if process is None or server is None or process.is_dead or process.is_hung:
        return

    async def stop() -> None:
        if stage.shares is not None:
            stage.shares.note_end()
        await server.stop()
        stage.world.report(f"{node.name} has stopped")
        stage.world.after(0.0, node.kill)

    if stage.has_begun:
        process.spawn(stop(), f"{node.name} stops")


def cut(stage: Stage, first: str, second: str, seconds: float) -> None:
    """Nothing passes between two hosts for a while."""
    stage.trouble(between(first, second), seconds)
    stage.world.network.cut(first, second)
    stage.world.after(seconds, lambda: stage.world.network.heal(first, second))


def node_cut_kafka(stage: Stage, fault: Fault) -> None:
    for broker in stage.brokers.values():
        cut(stage, stage.node(fault).host, broker.host, 0.2 + 20 * fault.amount**2)


def node_cut_broker(stage: Stage, fault: Fault) -> None:
    broker = stage.brokers[1 + fault.which % len(stage.brokers)]
    cut(stage, stage.node(fault).host, broker.host, 0.2 + LONG_CUT_S * fault.amount**2)


def node_cut_clients(stage: Stage, fault: Fault) -> None:
    for member in stage.members:
        if member.process is not None:
            cut(stage, stage.node(fault).host, member.process.host, 0.2 + 15 * fault.amount)


def wall_clock(stage: Stage, fault: Fault) -> None:
    process = stage.node(fault).process
    if process is not None:
        process.wall_s += (fault.amount - 0.5) * 7200


# Nodes, at a moment.
def node_kill_at(stage: Stage, fault: Fault) -> None:
    """The one that gets a certain answer next dies before it has it."""
    stage.traps.set(POINTS[fault.which % len(POINTS)], stage.node_hosts, stage.kill)


def node_hang_at(stage: Stage, fault: Fault) -> None:
    """It hangs before it has it, until others have taken over."""
    point = POINTS[fault.which % len(POINTS)]
    stage.traps.set(point, stage.node_hosts, lambda host: outlive(stage, host, fault))


def outlive(stage: Stage, host: str, fault: Fault) -> None:
    """A node hangs for longer than its session; of what it writes then, the others may die.

    Where the machine has slept, timers of what was under way have stood still as well.
    """
    process = next(each.process for each in stage.nodes if each.host == host)
    seconds = stage.scenario.node_session_s + OUTLIVES_S + 12 * fault.amount
    hang(stage, process, seconds, asleep=int(fault.amount * 1000) % 3 > 0)
    others = [each for each in stage.node_hosts if each != host]
    if fault.which % 2:
        stage.world.after(seconds, lambda: stage.traps.set(
            APPEND, [host], lambda _: stage.kill(*others)
        ))  # fmt: skip


def node_kill_at_beat(stage: Stage, fault: Fault) -> None:
    """One dies with a heartbeat of a consumer group: when it has written, or been answered."""
    stage.traps.set((BEAT, APPEND)[fault.which % 2], stage.node_hosts, stage.kill)


def nodes_away(stage: Stage, fault: Fault) -> None:
    """All nodes are away for longer than members' sessions."""
    sessions = [plan.session_s for plan in stage.scenario.groups if plan.is_consumer]
    away_s = min(sessions, default=0.0) + 3 * fault.amount
    for node in stage.nodes:
        stage.trouble(node.host, away_s)
        node.is_wanted = False
        node.kill()
        stage.world.after(away_s, node.start)
    stage.hold(away_s + RESTART_S)


def late_append(stage: Stage, fault: Fault) -> None:
    """Delay a node's next write to the journal; the node dies, and so may its heirs.

    A lone node may find the coordinator of its epoch hung when it comes back.
    """
    late_s = 1.5 + 12 * fault.amount
    coordinator_hangs = stage.scenario.nodes == 0 and fault.which % 4 == 1

    def delay_s(topic: str, host: str) -> float:
        if topic != JOURNAL_TOPIC:
            return 0.0
        stage.own.delay_s = lambda _topic, _host: 0.0
        stage.world.report(f"{host}: an append is {late_s:.2f} s under way")
        stage.hold(late_s)
        stage.world.after(0.0, lambda: stage.kill(host))
        if coordinator_hangs:
            hang_broker(stage, stage.brokers[stage.cluster.coordinator(ALL)], late_s)
        if fault.which % 2:
            stage.world.after(late_s + 0.003, lambda: stage.kill(*stage.node_hosts))
        return late_s

    stage.own.delay_s = delay_s


# Brokers.
def broker_crash(stage: Stage, fault: Fault) -> None:
    broker, seconds = stage.broker(fault), 0.5 + 10 * fault.amount
    if broker.is_reachable and not broker.is_hung and len(stage.cluster.down) < 2:
        stage.trouble(broker.host, seconds)
        broker.crash(seconds)


def broker_hang(stage: Stage, fault: Fault) -> None:
    hang_broker(stage, stage.broker(fault), 0.2 + 24 * fault.amount)


def hang_broker(stage: Stage, broker: Broker, seconds: float) -> None:
    if broker.is_reachable and not broker.is_hung:
        stage.trouble(broker.host, seconds)
        broker.hang(seconds)


def broker_slow(stage: Stage, fault: Fault) -> None:
    host = stage.broker(fault).host
    stage.trouble(host, 5.0)
    stage.world.network.slow(host, 0.3 * fault.amount)
    stage.world.after(5.0, lambda: stage.world.network.slow(host, 0.0))


def elect(stage: Stage, fault: Fault) -> None:
    partition = stage.partition(fault)
    if partition is not None:
        stage.cluster.elect(partition)


def elect_with_loss(stage: Stage, fault: Fault) -> None:
    partition = stage.partition(fault, is_safe=False)
    if partition is not None:
        stage.cluster.elect(partition, lose=1 + int(fault.amount * 10))
        _was_cut(stage, partition)


def lose_disk(stage: Stage, fault: Fault) -> None:
    partition = stage.partition(fault, is_safe=False)
    if partition is not None and fault.amount < 0.5:
        stage.cluster.elect(partition, lose=2**40, start=0 if fault.amount < 0.25 else None)
        _was_cut(stage, partition)


def loss_while_down(stage: Stage, fault: Fault) -> None:
    """Kill all nodes, and cut a log before they are back."""
    stage.kill(*stage.node_hosts)
    stage.hold(RESTART_S / 2)
    stage.world.after(RESTART_S / 2, lambda: elect_with_loss(stage, fault))


def _was_cut(stage: Stage, partition: Partition) -> None:
    stage.judgement.cut(partition)
    stage.producers.note_cut(partition)
    partition.wake()


def delete_records(stage: Stage, fault: Fault) -> None:
    partition = stage.partition(fault)
    if partition is not None:
        log = partition.log
        to = log.log_start + int((log.end - log.log_start) * fault.amount)
        log.delete_before(to)
        stage.judgement.expired(partition)
        stage.world.report(f"kafka: {partition.topic}-{partition.index} begins at {to}")


def move_coordinator(stage: Stage, fault: Fault) -> None:
    groups = [*stage.cluster.groups]
    if groups:
        stage.cluster.move_coordinator(groups[fault.which % len(groups)], 2 * fault.amount)


def lost_commit_answer(stage: Stage, fault: Fault) -> None:
    for broker in stage.brokers.values():
        broker.lost_answers[OFFSET_COMMIT] = 1 + int(2 * fault.amount)


def lost_beat(stage: Stage, fault: Fault) -> None:
    for broker in stage.brokers.values():
        broker.lost_answers[CONSUMER_HEARTBEAT] = 1 + int(2 * fault.amount)


def late_commit(stage: Stage, fault: Fault) -> None:
    for broker in stage.brokers.values():
        broker.late_commits = 1 + int(2 * fault.amount)


def lost_ack(stage: Stage, fault: Fault) -> None:
    stage.own.lost_acks += 1 + int(4 * fault.amount)


def compact(stage: Stage, _fault: Fault) -> None:
    for name, logs in stage.cluster.own.items():
        if "individual" in name:
            for log in logs:
                log.compact()


# Members.
def member_kill(stage: Stage, fault: Fault) -> None:
    member = stage.member(fault)
    member.kill()
    stage.world.after(0.2 + 15 * fault.amount, member.start)


def member_stop(stage: Stage, fault: Fault) -> None:
    member = stage.member(fault)
    member.stop()
    stage.world.after(2 + 5 * fault.amount, member.start)


def member_hang(stage: Stage, fault: Fault) -> None:
    hang(stage, stage.member(fault).process, 0.2 + 20 * fault.amount)


def member_cut(stage: Stage, fault: Fault) -> None:
    process = stage.member(fault).process
    if process is not None:
        for node in stage.nodes:
            cut(stage, node.host, process.host, 0.2 + 15 * fault.amount)


def member_seek(stage: Stage, fault: Fault) -> None:
    _seek(stage.member(fault), 1 + int(10 * fault.amount))


def _seek(member: Member, back: int, *, commits: bool = False) -> None:
    """Its application goes back, and may say so at once. Those in transactions do not."""
    life, process = member.life, member.process
    if life is None or process is None or member.make_life is not None:
        return
    process.post(lambda: life.seek_and_commit(back) if commits else life.seek(back))


def seek_kill(stage: Stage, fault: Fault) -> None:
    """A member commits what it goes back to, and the node dies at that moment."""
    _seek(stage.member(fault), 1 + int(20 * fault.amount), commits=True)
    stage.traps.set((BACK, INTENT)[fault.which % 2], stage.node_hosts, stage.kill)


def seek_hang(stage: Stage, fault: Fault) -> None:
    """One that waits for long does so; the node hangs, until others have taken over."""
    member = max(stage.members, key=lambda each: each.habits.timeout_s)
    _seek(member, 1 + int(20 * fault.amount), commits=True)
    point = (INTENT, BACK)[fault.which < 3]
    stage.traps.set(point, stage.node_hosts, lambda host: outlive(stage, host, fault))


def seek_while_silent(stage: Stage, fault: Fault) -> None:
    """A broker hangs, and members want again what it has."""
    broker_hang(stage, fault)
    for member in stage.members:
        stage.world.after(1.0, partial(_seek, member, 5))


DO: dict[str, Do] = {
    each.__name__: each
    for each in (
        node_kill, node_hang, node_suspend, node_cut_kafka, node_cut_broker, node_cut_clients,
        node_stop, node_kill_at, node_hang_at, node_kill_at_beat, nodes_away, late_append,
        broker_crash, broker_hang, broker_slow, lost_beat,
        elect, elect_with_loss, loss_while_down, lose_disk, delete_records, move_coordinator,
        lost_commit_answer, late_commit, lost_ack, compact, member_kill, member_stop, member_hang,
        member_cut, wall_clock, member_seek, seek_kill, seek_hang, seek_while_silent,
    )
} | ADMIN  # fmt: skip
