"""Faults that concern share groups, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.broker_share import SHARE_ACKNOWLEDGE, SHARE_FETCH
from tests.simulation.node import RESTART_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.scenario import Fault
    from tests.simulation.share_store import ShareStore
    from tests.simulation.stage import Stage

POINTS = (f"api {SHARE_FETCH}", f"api {SHARE_ACKNOWLEDGE}")


def _store(stage: Stage) -> ShareStore:
    assert stage.shares is not None, "only schedules of share groups have these faults"
    return stage.shares.store


def _trouble(stage: Stage, seconds: float) -> None:
    stage.trouble("share coordinator", seconds)
    stage.hold(seconds)


def _point(fault: Fault) -> str:
    return POINTS[fault.which % len(POINTS)]


def share_writes_slow(stage: Stage, fault: Fault) -> None:
    """The share coordinator takes its time."""
    store, seconds = _store(stage), 1.0 + 6.0 * fault.amount
    store.slow_s, store.slow_until_s = 0.1 + 5.0 * fault.amount**2, stage.world.now_s + seconds
    _trouble(stage, seconds + store.slow_s)


def share_writes_fail(stage: Stage, fault: Fault) -> None:
    """It is not there; what fails may be written all the same."""
    store, seconds = _store(stage), 0.1 + 6.0 * fault.amount**2
    store.fails_until_s = stage.world.now_s + seconds
    store.is_late_failure = fault.which % 2 == 0
    _trouble(stage, seconds)


def lost_share_answer(stage: Stage, fault: Fault) -> None:
    for broker in stage.brokers.values():
        broker.lost_answers[(SHARE_FETCH, SHARE_ACKNOWLEDGE)[fault.which % 2]] = 1 + fault.which % 3


def share_kill_at(stage: Stage, fault: Fault) -> None:
    """A node dies between a broker's act and its answer."""
    stage.traps.set(_point(fault), stage.node_hosts, stage.kill)


def share_hang_at(stage: Stage, fault: Fault) -> None:
    """It hangs there, maybe until others have taken over."""
    seconds = 0.2 + (stage.scenario.node_session_s + 6.0) * fault.amount

    def strike(host: str) -> None:
        process = next(each.process for each in stage.nodes if each.host == host)
        if process is not None and not process.is_dead and not process.is_hung:
            stage.trouble(host, seconds)
            process.hang(seconds)

    stage.traps.set(_point(fault), stage.node_hosts, strike)


def share_elect_at(stage: Stage, fault: Fault) -> None:
    """Another broker leads before the answer is there."""

    def strike(_host: str) -> None:
        partition = stage.partition(fault)
        if partition is not None:
            stage.trouble("kafka", 1.0)
            stage.cluster.elect(partition)

    stage.traps.set(_point(fault), stage.node_hosts, strike)


def share_crash_at(stage: Stage, fault: Fault) -> None:
    """The broker dies there."""

    def strike(_host: str) -> None:
        broker, seconds = stage.broker(fault), 0.5 + 5 * fault.amount
        if broker.is_reachable and not broker.is_hung and len(stage.cluster.down) < 2:
            stage.trouble(broker.host, seconds)
            broker.crash(seconds)

    stage.traps.set(_point(fault), stage.node_hosts, strike)


def node_away(stage: Stage, fault: Fault) -> None:
    """A node is stopped for longer than its session: partitions move, and move back."""
    node, away_s = stage.node(fault), 1.0 + 12.0 * fault.amount
    process, server = node.process, node.server
    node.is_wanted = False
    if process is None or server is None or process.is_dead or process.is_hung:
        node.kill()
    elif fault.which % 2:

        async def stop() -> None:
            if stage.shares is not None:
                stage.shares.note_end()
            await server.stop()
            stage.world.after(0.0, node.kill)

        process.spawn(stop(), f"{node.name} stops")
    else:
        node.kill()
    stage.trouble(node.host, away_s)

    def back() -> None:
        node.is_wanted = False
        node.kill()
        node.start()

    stage.world.after(away_s, back)
    stage.hold(away_s + RESTART_S)


def connections_lost(stage: Stage, fault: Fault) -> None:
    """Connections of a node are reset: to members, or to brokers."""
    host = stage.node(fault).host
    to_brokers = fault.which % 2 == 0
    if stage.shares is not None and not to_brokers:
        stage.shares.note_end()
    for transport in list(stage.world.network.transports):
        end = transport._end
        if host in (end.host, end.peer.host) and end.is_open:
            is_broker = end.peer.host.startswith("kafka") or end.host.startswith("kafka")
            if is_broker == to_brokers:
                end.reset()
                end.on_lost(ConnectionResetError("reset"))


SHARE_DO: dict[str, Callable[[Stage, Fault], None]] = {
    each.__name__: each
    for each in (
        share_writes_slow, share_writes_fail, lost_share_answer, share_kill_at, share_hang_at,
        share_elect_at, share_crash_at, node_away, connections_lost,
    )
}  # fmt: skip
