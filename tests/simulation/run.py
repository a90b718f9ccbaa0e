"""Plays a scenario: starts all that is in it, makes things fail, and lets it come to rest."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest import mock

from keylane.offsets import steps
from tests.simulation.broker import Broker
from tests.simulation.cluster import Cluster
from tests.simulation.faults import DO
from tests.simulation.node import simulated
from tests.simulation.scenario import LOAD_S, Fault, Scenario
from tests.simulation.share_faults import SHARE_DO
from tests.simulation.stage import START_S, Stage
from tests.simulation.world import World

FAULT_S_MAX = 90.0
REST_S = 120.0
"""Seconds after the load until every record is read and committed."""
STEPS_FROM = 2
"""Intervals of a state whose journal has steps."""
AUDIT_S = 60.0
"""Seconds until nodes that have died together answer every lane's offset."""


@dataclass
class Outcome:
    """Result of a run."""

    scenario: Scenario
    breaches: list[str]
    notes: list[str]
    counts: dict[str, int]
    story: list[str]
    fingerprint: str = ""
    """A hash of the run, equal for equal runs."""


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
            self._world.report(text)


def fail(stage: Stage, fault: Fault) -> None:
    """Make it happen."""
    stage.world.report(f"FAULT {fault.kind} {fault.which} {fault.amount}")
    if stage.shares is not None:
        stage.shares.note_fault(fault)
    (DO | SHARE_DO)[fault.kind](stage, fault)


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Collect no garbage by chance: when it is looked for is the same in each run."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(1)  # the world that has ended
        if was_on:
            gc.enable()


@_garbage_kept()
def play(scenario: Scenario, *, level: int = logging.ERROR) -> Outcome:
    """Run it to its end."""
    world = World(scenario.seed)
    cluster = Cluster(world, scenario.brokers)
    logger, handler = logging.getLogger("keylane"), _Lines(world)
    before = logger.level, logger.propagate
    least = STEPS_FROM if scenario.writes_steps else steps.INTERVALS_MIN
    with mock.patch.object(steps, "INTERVALS_MIN", least), simulated(world, cluster) as own:
        brokers = {number: Broker(cluster, number) for number in cluster.broker_ids}
        world.brokers = {broker.host: broker for broker in brokers.values()}
        stage = Stage(scenario, world, cluster, own, brokers)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
        try:
            stage.start()
            for fault in scenario.faults:
                world.after(START_S + fault.at_s, partial(fail, stage, fault))
            world.run(START_S + LOAD_S + FAULT_S_MAX, until=stage.is_calm)
            stage.heal()
            world.run(world.now_s + REST_S, until=stage.is_at_rest)
            stage.crash_all()
            world.run(world.now_s + AUDIT_S, until=stage.is_audited)
            gc.collect(0)  # futures say now that their failure was noticed by none
            breaches, notes, counts = stage.judgement.conclude(stage.lane_members)
            if stage.shares is not None:
                found, share_counts = stage.shares.conclude()
                breaches += found
                counts |= share_counts
            if not stage.is_audited():
                breaches.append("audit: nodes that have died do not answer offsets of lanes")
        finally:
            world.close()
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]
    return Outcome(
        scenario, [*world.errors, *breaches], notes, counts, world.story,
        f"{world.steps} {world.now_s:.6f} {sorted(counts.items())}",
    )  # fmt: skip
