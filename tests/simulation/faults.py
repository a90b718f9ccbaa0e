"""What may go wrong in a run, by name.

In:    a `Fault`, and the stage.  Out: it happens, and what it troubles is noted for `waits`.
Next:  `run` has them happen when the scenario says; `admin` has what operators do.
Pure:  no I/O; chance is in the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.admin import ADMIN
from tests.simulation.broker_groups import OFFSET_COMMIT
from tests.simulation.traps import APPEND, BACK, INTENT, POINTS
from tests.simulation.waits import between

if TYPE_CHECKING:
    from tests.simulation.cluster import Partition
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
    """As SIGSTOP, or as a machine that sleeps."""
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
        await server.stop()
        stage.world.tell(f"{node.name} has stopped")
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
    """It dies before it gets one of its answers."""
    node, point = stage.node(fault), _point(stage, fault)
    stage.traps.set(point, [node.host], lambda _: node.kill())


def node_hang_at(stage: Stage, fault: Fault) -> None:
    """It hangs before it gets one, until others have taken over; they may die of what it writes."""
    node, point = stage.node(fault), _point(stage, fault)
    stage.traps.set(point, [node.host], lambda _: outlive(stage, node.host, fault.amount))


def _point(stage: Stage, fault: Fault) -> str:
    return POINTS[fault.which // len(stage.nodes) % len(POINTS)]


def outlive(stage: Stage, host: str, amount: float) -> None:
    """A node hangs for longer than its session; when it writes again, the others may die."""
    process = next(each.process for each in stage.nodes if each.host == host)
    seconds = stage.scenario.node_session_s + OUTLIVES_S + 12 * amount
    hang(stage, process, seconds)
    if round(amount * 1000) % 2:
        stage.world.after(seconds, lambda: stage.traps.set(
            APPEND, [host], lambda _: kill_others(stage, host)
        ))  # fmt: skip


def kill_others(stage: Stage, host: str) -> None:
    for each in stage.nodes:
        if each.host != host:
            each.kill()


def late_append(stage: Stage, fault: Fault) -> None:
    """What a node writes to the journal next is long under way; it dies, and so may its heirs."""
    node, late_s = stage.node(fault), 1.5 + 9 * fault.amount
    until_s = stage.world.now_s + 8.0

    def delay_s(topic: str, host: str) -> float:
        is_it = host == node.host and "individual" in topic
        if stage.world.now_s > until_s or not is_it:
            return 0.0
        stage.own.delay_s = lambda _topic, _host: 0.0
        stage.world.tell(f"{host}: an append is {late_s:.2f} s under way")
        stage.hold(late_s)
        stage.world.after(0.0, node.kill)
        if fault.which % 2:
            stage.world.after(late_s + 0.003, lambda: kill_others(stage, ""))
        return late_s

    stage.own.delay_s = delay_s


# Brokers.
def broker_crash(stage: Stage, fault: Fault) -> None:
    broker, seconds = stage.broker(fault), 0.5 + 10 * fault.amount
    if broker.is_reachable and not broker.is_hung and len(stage.cluster.down) < 2:
        stage.trouble(broker.host, seconds)
        broker.crash(seconds)


def broker_hang(stage: Stage, fault: Fault) -> None:
    broker, seconds = stage.broker(fault), 0.2 + 24 * fault.amount
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
        stage.world.tell(f"kafka: {partition.topic}-{partition.index} begins at {to}")


def move_coordinator(stage: Stage, fault: Fault) -> None:
    groups = [*stage.cluster.groups]
    if groups:
        stage.cluster.move_coordinator(groups[fault.which % len(groups)], 2 * fault.amount)


def lost_commit_answer(stage: Stage, fault: Fault) -> None:
    for broker in stage.brokers.values():
        broker.lost_answers[OFFSET_COMMIT] = 1 + int(2 * fault.amount)


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
    member = stage.member(fault)
    life, process = member.life, member.process
    if life is not None and process is not None and member.make_life is None:
        process.post(lambda: life.seek(1 + int(10 * fault.amount)))


def seek_at(stage: Stage, fault: Fault) -> None:
    """A member goes back, and the node that takes its commit dies or hangs at that moment."""
    member_seek(stage, fault)
    hosts = [each.host for each in stage.nodes]
    point, kills = ((BACK, True), (INTENT, False), (INTENT, True))[fault.which % 3]

    def strike(host: str) -> None:
        if kills:
            next(each for each in stage.nodes if each.host == host).kill()
        else:
            outlive(stage, host, fault.amount)

    stage.traps.set(point, hosts, strike)


DO: dict[str, Do] = {
    each.__name__: each
    for each in (
        node_kill, node_hang, node_suspend, node_cut_kafka, node_cut_broker, node_cut_clients,
        node_stop, node_kill_at, node_hang_at, late_append, broker_crash, broker_hang, broker_slow,
        elect, elect_with_loss, lose_disk, delete_records, move_coordinator, lost_commit_answer,
        late_commit, lost_ack, compact, member_kill, member_stop, member_hang, member_cut,
        wall_clock, member_seek, seek_at,
    )
} | ADMIN  # fmt: skip
