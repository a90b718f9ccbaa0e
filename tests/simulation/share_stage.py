"""Share groups of a run: their topics, members and producers, and when they are at rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.node import PORT
from tests.simulation.producers import Producers
from tests.simulation.scenario import LOAD_S, TopicPlan
from tests.simulation.share_judge import ShareBook, judge_shares
from tests.simulation.share_member import ShareMember
from tests.simulation.share_store import ShareStore, ShareTimes

if TYPE_CHECKING:
    from tests.simulation.scenario import Fault
    from tests.simulation.stage import Stage

START_S = 5.0
FAULT_S = 3.0
"""Seconds for which a fault that has no duration is felt."""


LOSES_ANSWERS = {
    "node_hang", "node_suspend", "node_kill", "node_stop", "node_away", "node_cut_clients",
    "share_kill_at", "share_hang_at", "connections_lost", "member_kill", "member_stop",
    "member_hang", "member_cut",
}  # fmt: skip
"""Faults after which an answer of a node may not reach a member."""


@dataclass
class ShareStage:
    """Use: `prepare` before nodes start, then `start`."""

    stage: Stage
    store: ShareStore = field(init=False)
    book: ShareBook = field(init=False)
    producers: Producers = field(init=False)
    members: list[ShareMember] = field(default_factory=list)

    def __post_init__(self) -> None:
        stage = self.stage
        self.store = ShareStore(stage.world, stage.cluster)
        self.book = ShareBook(stage.world, stage.cluster, stage.scenario.shares)
        self.producers = Producers(stage.world, stage.cluster, stage.brokers, self.book)

    def prepare(self) -> list[dict[str, Any]]:
        """Make topics; return the nodes' rules."""
        stage = self.stage
        self.book.note_trouble(START_S)
        for plan in stage.scenario.shares:
            stage.cluster.create(plan.topic, plan.partitions)
            self.store.times[plan.name] = ShareTimes(plan.lock_s, plan.deliveries, plan.locks)
        for broker in stage.brokers.values():
            broker.offer_shares(self.store)
        return [
            {
                "group": plan.name,
                "look_ahead": plan.look_ahead,
                "confirm": "received" if plan.is_received else "written",
            }
            for plan in stage.scenario.shares
        ]

    def start(self) -> None:
        """Members and producers."""
        stage, rng = self.stage, self.stage.world.rng
        bootstrap = [(node.host, PORT) for node in stage.nodes]
        for plan in stage.scenario.shares:
            for number in range(plan.members):
                name = f"{plan.name}m{number}"
                member = ShareMember(stage.world, name, bootstrap, plan, number=number)
                self.members.append(member)
                stage.world.after(START_S * rng.random(), member.start)
            topic = TopicPlan(
                plan.topic, plan.partitions, 1, is_safe=True, keys=plan.keys,
                batches_per_s=plan.batches_per_s, transactions=plan.transactions,
            )  # fmt: skip
            self.producers.write_on(topic, START_S + LOAD_S)

    def note_fault(self, fault: Fault) -> None:
        """Note that something is about to happen."""
        self.book.has_lost_answers |= fault.kind in LOSES_ANSWERS
        if not fault.kind.startswith("member"):
            self.book.note_trouble(FAULT_S)

    def note_end(self) -> None:
        """A process of a node has ended, or members' connections to one."""
        self.book.note_end()
        self.book.note_trouble(FAULT_S)

    def is_complete(self) -> bool:
        """Return whether every record is finished at the brokers."""
        return not self.producers.has_open and not self.book.unfinished(self.store.ledger)

    def conclude(self) -> tuple[list[str], dict[str, int]]:
        """Return breaches and counts."""
        return judge_shares(self.stage.scenario.shares, self.members, self.store, self.book)
