"""Parts of a node that the others stand on, and that its control port shows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from keylane.config.node import ProxyConfig
from keylane.config.origins import LoadedConfig
from keylane.config.own_names import OWN_TOPICS
from keylane.journal.set_aside import SetAside
from keylane.offsets.values import Damaged
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.control.health import Health
from keylane.proxy.runtime.event_log import EventLog, Kind, Severity
from keylane.proxy.runtime.stats import COUNTER, GAUGE, ProxyStats, Sample
from keylane.tasks import Watched

SET_ASIDE = "Records of keylane's own topics that were set aside since the start."
RESTARTS = "Times that a task of keylane failed and was restarted."
RESTING = "Failed tasks that wait for their restart."


def now_ms() -> int:
    """Return the time in ms since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Faults inside that were survived: for `/readyz`, and for metrics."""

    set_aside: SetAside
    watched: Watched

    def lines(self) -> list[str]:
        """Return lines for `/readyz`."""
        return self.watched.lines() + self.set_aside.lines()

    def samples(self) -> Iterator[Sample]:
        """Yield samples for metrics."""
        for topic in sorted(OWN_TOPICS):
            labels, count = (("topic", topic),), self.set_aside.counts[topic]
            yield Sample("keylane_records_set_aside", GAUGE, SET_ASIDE, labels, count)
        for task, count in sorted(self.watched.restarts.items()):
            yield Sample(
                "keylane_tasks_restarted_total", COUNTER, RESTARTS, (("task", task),), count
            )
        yield Sample("keylane_tasks_resting", GAUGE, RESTING, (), len(self.watched.resting))


@dataclass(frozen=True, slots=True)
class ControlBase:
    """Parts of a node that the others stand on, and what its control port shows of them."""

    loaded: LoadedConfig
    """The configuration as it was set."""
    config: ProxyConfig
    """With the bounds that follow from `memory_max`."""
    stats: ProxyStats
    cluster: Cluster
    health: Health
    upkeep: Upkeep
    connections_max: int
    """On the control port."""
    event_log: EventLog = field(default_factory=lambda: EventLog(now_ms))


def note_faults(upkeep: Upkeep, event_log: EventLog) -> None:
    """Have faults inside that were survived noted as events."""

    def note_failed(task: str) -> None:
        event_log.note(
            Kind.ERROR,
            f"The background task {task} failed, and is restarted; the log has the trace.",
            severity=Severity.ERROR,
        )

    def note_set_aside(topic: str, damaged: Damaged) -> None:
        event_log.note(
            Kind.JOURNAL,
            f"A damaged record of {topic} was left out, at partition {damaged.partition} offset "
            f"{damaged.offset}: {damaged.reason}.",
            severity=Severity.ERROR,
            topic=topic,
        )

    upkeep.watched.on_failed, upkeep.set_aside.on_noted = note_failed, note_set_aside
