"""One consumer of the demo in a separate process: a stock client that reports what it does.

Started as `python -m keylane.demo.member` with client library, bootstrap address, topic, group and
member number. It writes one JSON line per event (`events`) to stdout. `stop` on stdin asks for an
orderly end; the end of stdin (the parent is gone) ends this process at once.

An order counts as processed when the line that reports it is written; only then may its offset
be committed. So a kill -9 at any moment can repeat work, and never lose any.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from keylane.audit.record import lane_places
from keylane.audit.reporter import AuditReporter
from keylane.demo.events import (
    CommitFailed,
    Delivered,
    Event,
    LanesAssigned,
    LanesCommitted,
    LanesReleased,
    OrderBatch,
    SessionEnd,
    write_event,
)
from keylane.demo.orders import OrderRun, append_run, read_order
from keylane.keyrange.lane import LaneLayout

COMMIT_INTERVAL_S: Final = 1.0
"""Long enough that a kill finds something uncommitted: Kafka's own auto-commit waits 5 s."""
SESSION_TIMEOUT_MS: Final = 12_000
"""Time that the group waits for a killed member: Kafka's default of 45 s outlasts a show, and a
shorter one than a busy machine needs to bring a killed proxy back gives lanes away meanwhile."""
HEARTBEAT_MS: Final = 1_000
RECONNECT_BACKOFF_MAX_MS: Final = 1_000
"""Between two tries to connect; by default librdkafka waits up to 10 s and kafka-python up to 30 s,
so that after a restart of some seconds their next try comes behind the session's end."""
POLL_MS: Final = 200
"""Time that a poll waits, and so the delay until `stop` is seen."""
BATCH_RECORDS_MAX: Final = 500

STOP_WORD: Final = b"stop"
STOP_LATE_S: Final = 10.0
"""A member commits, leaves the group and ends within 5 s; after this its log has its threads'
stacks, since client libraries can hang as they close."""

MODULES: Final = {
    "confluent-kafka": "keylane.demo.member_confluent",
    "aiokafka": "keylane.demo.member_aiokafka",
    "kafka-python": "keylane.demo.member_kafka_python",
    "keylane.client": "keylane.demo.member_workers",
}


class Seat(NamedTuple):
    """Place of a member: where it reads, and under which name."""

    bootstrap: str
    topic: str
    group: str
    client_id: str

    def settings(self) -> dict[str, str | int | bool]:
        """Return what all members set, as kafka-python and aiokafka name it.

        librdkafka has the same names with dots.
        """
        return {
            "bootstrap_servers": self.bootstrap,
            "group_id": self.group,
            "client_id": self.client_id,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
        }


class MemberProgress:
    """Collects what was processed, reports it, and knows which positions wait for a commit.

    Used from one thread, or under the caller's own lock. Invariant: `waiting` holds positions
    of reported records only, of lanes that the member owns. With a reporter the same goes to an
    audit topic, always before it may be committed.
    """

    def __init__(
        self,
        emit: Callable[[Event], None],
        *,
        member: int,
        reporter: AuditReporter | None = None,
    ) -> None:
        self.emit, self.member, self._reporter = emit, member, reporter
        self._runs: dict[int, list[OrderRun]] = {}
        self._offsets: dict[int, tuple[int, int]] = {}
        self.waiting: dict[int, int] = {}
        self._commit_due_s = 0.0

    def process(self, lane: int, offset: int, key: bytes, value: bytes) -> None:
        """Do the work of one order: here, to remember it until `report`."""
        customer, number = read_order(key, value)
        append_run(self._runs.setdefault(lane, []), customer, number)
        first, _ = self._offsets.get(lane, (offset, offset))
        self._offsets[lane] = (first, offset)
        if self._reporter is not None:
            self._reporter.processed(lane, offset, key)

    def report(self) -> None:
        """Write what was processed since the last call; from now on it may be committed."""
        if not self._runs:
            return
        if self._reporter is not None:
            self._reporter.flush()
        batches = tuple(
            OrderBatch(lane, *self._offsets[lane], tuple(runs)) for lane, runs in self._runs.items()
        )
        self.emit(Delivered(self.member, time.monotonic_ns(), batches))
        self.waiting.update({batch.lane: batch.last_offset + 1 for batch in batches})
        self._runs, self._offsets = {}, {}

    def commit_is_due(self, now_s: float) -> bool:
        """Return whether to commit `waiting` now; asks for the next one an interval later."""
        if not self.waiting or now_s < self._commit_due_s:
            return False
        self._commit_due_s = now_s + COMMIT_INTERVAL_S
        return True

    @contextmanager
    def committing(self, refused: type[Exception]) -> Iterator[dict[int, int]]:
        """Give what waits; it is committed when the block ends, and not when that is `refused`."""
        wanted = dict(self.waiting)
        try:
            yield wanted
        except refused as error:
            self.commit_failed(wanted, type(error).__name__)
        else:
            self.committed(wanted)

    def committed(self, positions: dict[int, int]) -> None:
        """The group has confirmed `positions`."""
        if not positions:
            return
        self.emit(LanesCommitted(self.member, time.monotonic_ns(), tuple(positions.items())))
        if self._reporter is not None:
            self._reporter.committed(positions)
        for lane, position in positions.items():
            if self.waiting.get(lane) == position:
                del self.waiting[lane]

    def commit_failed(self, lanes: Iterable[int], reason: object) -> None:
        """A commit failed; its positions go on waiting for as long as the lanes are owned."""
        failed = CommitFailed(self.member, time.monotonic_ns(), tuple(lanes), str(reason))
        self.emit(failed)

    def assigned(self, lanes: Iterable[int], *, generation: int = -1) -> None:
        """The member owns `lanes` from now on; generation -1 where the client has none."""
        taken = tuple(sorted(lanes))
        self.emit(LanesAssigned(self.member, time.monotonic_ns(), taken))
        if self._reporter is not None:
            self._reporter.assigned(taken, generation=generation)

    def released(self, lanes: Iterable[int], *, lost: bool = False) -> None:
        """The member owns `lanes` no longer; what it did not commit is another's to repeat."""
        gone = tuple(sorted(lanes))
        for lane in gone:
            self.waiting.pop(lane, None)
            self._runs.pop(lane, None)
            self._offsets.pop(lane, None)
        if gone:
            end = SessionEnd.LOST if lost else SessionEnd.REVOKED
            self.emit(LanesReleased(self.member, time.monotonic_ns(), gone, end))


def main(argv: list[str] | None = None) -> int:
    """Consume until `stop`; returns 0 after an orderly end."""
    parser = argparse.ArgumentParser(prog="keylane.demo.member", description=__doc__)
    parser.add_argument("--client", choices=sorted(MODULES), required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--audit", nargs=4, metavar=("BOOTSTRAP", "TOPIC", "PARTITIONS", "LANES"))
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    stopping = threading.Event()
    threading.Thread(target=_watch_parent, args=(stopping,), daemon=True).start()
    client_id = f"demo-{args.number}-{args.client}"
    reporter = _make_reporter(args.audit, client_id) if args.audit else None
    progress = MemberProgress(_write_line, member=args.number, reporter=reporter)
    consume = importlib.import_module(MODULES[args.client]).consume
    seat = Seat(args.bootstrap, args.topic, args.group, client_id)
    consume(progress, seat, stopping.is_set)
    if reporter is not None:
        reporter.close()
    return 0


def _make_reporter(audit: Sequence[str], client_id: str) -> AuditReporter:
    bootstrap, topic, partitions, lanes = audit
    layout = LaneLayout(partition_count=int(partitions), lane_count=int(lanes))
    settings = {"bootstrap.servers": bootstrap, "client.id": client_id, "log_level": 0}
    return AuditReporter(settings, topic, member=client_id, place_of=lane_places(layout))


def _write_line(event: Event) -> None:
    sys.stdout.buffer.write(write_event(event).encode() + b"\n")
    sys.stdout.buffer.flush()


def _watch_parent(stopping: threading.Event) -> None:
    # The bare descriptor: a thread inside sys.stdin's lock would break the interpreter's end.
    while words := os.read(0, 64):
        if STOP_WORD in words:
            stopping.set()
            faulthandler.dump_traceback_later(STOP_LATE_S)
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
