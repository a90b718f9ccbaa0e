"""A real group on real lanes: stock consumers that report, of which some are killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keylane.demo.events import Event
from keylane.demo.ledger import Ledger, build_ledger
from keylane.demo.members import Members, last_words
from keylane.demo.producer import OrderProducer
from keylane.demo.scenario import client_of


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRun:
    """Settings of a group's run."""

    kafka: str
    proxy: str
    topic: str
    audit_topic: str
    partitions: int
    lanes: int
    folder: Path
    members: int = 8
    orders: int = 6000
    rate_per_s: float = 1500.0
    timeout_s: float = 180.0
    """Time-out of each step, in seconds."""


class AuditedGroup:
    """Members of all client libraries in turn; two are killed at a third and at two thirds."""

    def __init__(self, run: GroupRun) -> None:
        self.run = run
        self._members = Members(
            bootstrap=run.proxy,
            topic=run.topic,
            group=f"{run.topic}-group",
            folder=run.folder,
            audit=(run.kafka, run.audit_topic, str(run.partitions), str(run.lanes)),
        )
        self._producer = OrderProducer(
            bootstrap=run.kafka, topic=run.topic, rate_per_s=run.rate_per_s, customers=300
        )
        self._ledger, self._events = Ledger(), list[Event]()

    def play(self) -> Ledger:
        """Run to the end; every order is processed and all members have left."""
        count = self.run.members
        try:
            for number in range(1, count + 1):
                self._members.start(number, client_of(number))
            self._until(lambda: len(self._readers()) == count, "all members read")
            self._producer.start()
            for turn, share in enumerate((0.33, 0.66)):
                self._until_delivered(share)
                self._members.kill(2 * turn + 1)
                self._members.kill(2 * turn + 2)
                for number in (count + 2 * turn + 1, count + 2 * turn + 2):
                    self._members.start(number, client_of(number))
            self._until_delivered(1.0)
            self._producer.stop()
            self._until(lambda: self._producer.finished, "the producer's end")
            produced = self._producer.produced()
            self._until(lambda: self._ledger.lost_count(produced) == 0, "the rest")
            self._members.ask_to_stop()
            self._until(lambda: not self._members.alive, "the members' end")
        finally:
            self._members.close()
        failed = [f"{m.number} {m.client}: {last_words(m)}" for m in self._members.failed]
        assert failed == []
        return build_ledger(self._events)

    def _readers(self) -> set[int]:
        return {owner.member for owner in self._ledger.lane_owners.values()}

    def _until_delivered(self, share: float) -> None:
        wanted = share * self.run.orders
        self._until(lambda: self._ledger.delivered_count() >= wanted, f"{wanted:.0f} orders")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + self.run.timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, self._late(what)
            for event in self._members.read(timeout_s=0.2):
                self._events.append(event)
                self._ledger.apply(event)

    def _late(self, what: str) -> str:
        """The step that was late, with logs of members: one that does not stop logs its stacks."""
        logs = [
            f"member {member.number}, {member.client}:\n{text}"
            for member in self._members.alive
            if (text := member.log_path.read_text(errors="replace"))
        ]
        return "\n".join([f"not within {self.run.timeout_s} s: {what}", *logs])
