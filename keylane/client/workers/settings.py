"""Options of the workers, with their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from keylane.client.workers.executors import EXECUTORS, ExecutorName
from keylane.client.workers.letters import DeadLetters
from keylane.client.workers.queue import ORDERS, Order
from keylane.client.workers.retry import NO_RETRY, Retry
from keylane.errors import ConfigInvalid

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

QUEUED_PER_WORKER: Final = 16
QUEUED_PER_PARTITION: Final = 32
QUEUED_MIN: Final = 1_000
"""A poll has up to 500 records, as with Kafka's consumer: one waits while one is worked off."""
MIB: Final = 1024 * 1024


class WorkerOptions(TypedDict, total=False):
    """Keyword arguments of `Workers`; each is a field of `WorkerSettings`, which says more."""

    concurrency: int | None
    order: Order
    retry: Retry
    timeout_s: float | None
    dead_letters: DeadLetters | None
    executor: ExecutorName
    max_queued: int | None
    max_queued_bytes: int
    commit_interval_s: float
    drain_timeout_s: float | None
    shutdown_timeout_s: float
    signals: bool
    progress: bool | None
    metrics: CollectorRegistry | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Options with their defaults. Raises: ConfigInvalid naming the option."""

    concurrency: int | None = None
    """Records at work at once. None: 64, and with processes one per CPU."""
    order: Order = "key"
    """"key": one record of a key at a time, in the order of offsets; those without a key side by
    side. "partition": one record of a partition at a time. "none": side by side."""
    retry: Retry = NO_RETRY
    """Number and times of the attempts at a record."""
    timeout_s: float | None = None
    """Time limit of an attempt."""
    dead_letters: DeadLetters | None = None
    """None: a record whose attempts are over ends the run with `WorkFailed`."""
    executor: ExecutorName = "auto"
    """"auto": the event loop for coroutine functions, threads for others."""
    max_queued: int | None = None
    """Records that wait, in all. None: 16 per record at work, 32 per partition or lane, and at
    least 1,000."""
    max_queued_bytes: int = 64 * MIB
    """Of records that wait or are at work; a poll may exceed it by what it brings."""
    commit_interval_s: float = 1.0
    """A crash repeats up to this much of finished work. 0: the next commit begins as soon as the
    one before is answered, so a crash repeats what was at work, and what ended meanwhile."""
    drain_timeout_s: float | None = None
    """Time that work of a revoked partition has to end. None: until the group takes it away."""
    shutdown_timeout_s: float = 30.0
    """Time that work in progress has to end when the run stops."""
    signals: bool = True
    """Stop at SIGINT and SIGTERM; in a thread other than the main one there are none."""
    progress: bool | None = None
    """A line on stderr. None: if it is a terminal."""
    metrics: CollectorRegistry | None = None
    """A registry of prometheus-client for `keylane_workers_*`."""
    name: str = "keylane"
    """Label of the metrics, name in spans."""

    def __post_init__(self) -> None:
        bounds = (
            ("concurrency", self.concurrency is None or self.concurrency >= 1),
            ("order", self.order in ORDERS),
            ("executor", self.executor in EXECUTORS),
            ("timeout_s", self.timeout_s is None or self.timeout_s > 0),
            ("max_queued", self.max_queued is None or self.max_queued >= 1),
            ("max_queued_bytes", self.max_queued_bytes >= 1),
            ("commit_interval_s", self.commit_interval_s >= 0),
            ("drain_timeout_s", self.drain_timeout_s is None or self.drain_timeout_s >= 0),
            ("shutdown_timeout_s", self.shutdown_timeout_s >= 0),
        )
        for option, is_good in bounds:
            if not is_good:
                raise ConfigInvalid(f"{option}: {getattr(self, option)!r} is out of bounds")

    def queued_max(self, concurrency: int, partition_count: int = 1) -> int:
        """Return how many records may wait, with so many at work, of so many partitions."""
        return self.max_queued or max(
            QUEUED_MIN, QUEUED_PER_WORKER * concurrency, QUEUED_PER_PARTITION * partition_count
        )
