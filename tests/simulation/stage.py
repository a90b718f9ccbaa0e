"""The parts of a run: cluster, nodes, members, producers, and the judgement."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.reference.consumer_coordinator import Times
from tests.simulation import admin
from tests.simulation.consumer_member import ConsumerLife
from tests.simulation.fetching import Habits
from tests.simulation.judgement import Judgement
from tests.simulation.member import Member
from tests.simulation.node import PORT, Node
from tests.simulation.producers import Producers
from tests.simulation.scenario import LOAD_S
from tests.simulation.share_stage import ShareStage
from tests.simulation.transactor import TransactionalLife
from tests.simulation.traps import Traps
from tests.simulation.waits import Waits

if TYPE_CHECKING:
    from tests.long.chaos_history import Place
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster, Partition
    from tests.simulation.own_topics import Own
    from tests.simulation.scenario import Fault, GroupPlan, Scenario, TopicPlan
    from tests.simulation.world import World

START_S = 5.0
LOOK_S = 0.2
RIGHTS_S = 600.0
"""Rights that are kept are kept for longer than a run."""


@dataclass
class Stage:
    """Use: `start`, then time passes."""

    scenario: Scenario
    world: World
    cluster: Cluster
    own: Own
    brokers: dict[int, Broker]
    nodes: list[Node] = field(default_factory=list)
    members: list[Any] = field(default_factory=list)
    """Members of groups, and of share groups (`ShareMember`)."""
    tools: list[admin.Tool] = field(default_factory=list)
    groups_changed: set[str] = field(default_factory=set)
    """Groups that tools are changing at this moment."""
    lanes: dict[str, int] = field(default_factory=dict)
    """Current lane count of each topic."""
    judgement: Judgement = field(init=False)
    producers: Producers = field(init=False)
    traps: Traps = field(init=False)
    waits: Waits = field(init=False)
    shares: ShareStage | None = None
    _looked_s: float = 0.0
    _held_until_s: float = 0.0

    def __post_init__(self) -> None:
        hosts = [each.host for each in self.brokers.values()]
        self.waits = Waits(hosts, is_right_kept=self.scenario.keeps_rights)
        self.judgement = Judgement(self.world, self.cluster, self.scenario, self.waits)
        self.producers = Producers(self.world, self.cluster, self.brokers, self.judgement)
        self.traps = Traps(self.world, self.cluster)
        self.cluster.on_decided.append(self._note_decided)
        if self.scenario.shares:
            self.shares = ShareStage(self)

    # Start.
    def start(self) -> None:
        """Topics, nodes, members, producers."""
        scenario = self.scenario
        for topic in scenario.topics:
            self.cluster.create(topic.name, topic.partitions, is_safe=topic.is_safe)
        self.cluster.create_own("__consumer_offsets", 3)
        self.cluster.create_own("__transaction_state", 3)
        self.lanes = {each.name: each.lanes for each in scenario.topics}
        rules = [] if self.shares is None else self.shares.prepare()
        for number in range(max(1, scenario.nodes)):
            settings: dict[str, Any] = {
                "lanes": self._rules,
                "node_session_timeout_ms": int(1000 * scenario.node_session_s),
            }  # fmt: skip
            if rules:
                settings["share_groups"] = rules
            if scenario.nodes:
                settings["node"] = number
            if scenario.keeps_rights:
                settings["authorization_ttl_s"] = RIGHTS_S
            if scenario.forget_s:
                settings["forget_interval_s"] = scenario.forget_s
            rate = scenario.rates[number % len(scenario.rates)]
            self.nodes.append(Node(self.world, number, settings, rate=rate))
        for node in self.nodes:
            if self.shares is not None:
                node.on_end = self.shares.note_end
            node.start()
        for plan in scenario.groups:
            self._start_group(plan)
        for topic in scenario.topics:
            self.producers.write_on(topic, START_S + LOAD_S)
        if self.shares is not None:
            self.shares.start()
            self.members += self.shares.members

    @property
    def _rules(self) -> list[dict[str, Any]]:
        return [{"topic": name, "lanes": lanes} for name, lanes in self.lanes.items()]

    def set_lanes(self, topic: TopicPlan, lanes: int) -> None:
        """Configure it; nodes have it when they start again."""
        self.lanes[topic.name] = lanes
        for node in self.nodes:
            node.settings |= {"lanes": self._rules, "accept_layout": [topic.name]}
        self.judgement.has_other_lanes(topic, lanes)

    def parts_of(self, topic: TopicPlan) -> int:
        """Return the current parts of each lane: lanes of the topic's finest layout."""
        return topic.lanes_most // self.lanes[topic.name]

    def topic_of(self, plan: GroupPlan) -> TopicPlan:
        return next(each for each in self.scenario.topics if each.name == plan.topic)

    def _start_group(self, plan: GroupPlan) -> None:
        topic = self.topic_of(plan)
        bootstrap = [(node.host, PORT) for node in self.nodes]
        habits = Habits(
            group=plan.name,
            topic=plan.topic,
            partition_count=topic.partitions,
            commit_s=plan.commit_s,
            work_s=plan.work_s,
            is_committed=plan.is_committed,
            lane_topic=plan.lane_topic(topic.lanes),
            parts=self.parts_of(topic),
            by_record=plan.by_record,
            session_s=plan.session_s,
            is_patient=plan.is_patient and not plan.is_transactional,
            says_epochs=plan.says_epochs,
            reached=self.judgement.reached(plan.name),
            waits=self.waits,
            begins=self._begins,
            on_back=partial(self.judgement.goes_back, plan.name),
            is_static=plan.is_static,
            rebalance_s=plan.rebalance_s,
        )
        if plan.is_consumer:
            self.cluster.times[plan.name] = Times(
                session_s=plan.session_s, heartbeat_s=plan.heartbeat_s,
                assignment_s=plan.assignment_s, keeps_epochs=plan.keeps_epochs,
            )  # fmt: skip
        for number in range(plan.members):
            own = replace(
                habits,
                timeout_s=plan.timeouts_s[number % len(plan.timeouts_s)],
                is_java=number % 2 == 0,
                revoke_s=plan.revoke_s[number % len(plan.revoke_s)],
            )
            member = Member(self.world, f"{plan.name}m{number}", bootstrap, own)
            if plan.is_transactional:
                member.make_life = TransactionalLife
            elif plan.is_consumer:
                member.make_life = ConsumerLife
            self.members.append(member)
            self.world.after(START_S * self.world.rng.random(), member.start)
        if plan.watched_s:
            admin.watch(self, plan)

    def _begins(self, place: Place) -> int:
        partitions = self.cluster.topics[place.topic].partitions
        return partitions[place.lane % len(partitions)].log.log_start

    def _note_decided(self, transactional_id: str, is_commit: bool) -> None:
        for member in self.lane_members:
            if transactional_id == f"txn-{member.name}":
                staged, member.staged = member.staged, []
                member.visible += staged if is_commit else []

    # What faults ask for.
    @property
    def has_begun(self) -> bool:
        """Return whether nodes had time to start."""
        return self.world.now_s > START_S

    def node(self, fault: Fault) -> Node:
        return self.nodes[fault.which % len(self.nodes)]

    @property
    def lane_members(self) -> list[Member]:
        """Members of groups that are no share groups."""
        return [each for each in self.members if isinstance(each, Member)]

    @property
    def node_hosts(self) -> list[str]:
        return [node.host for node in self.nodes]

    def kill(self, *hosts: str) -> None:
        """The nodes there."""
        for node in self.nodes:
            if node.host in hosts:
                node.kill()

    def broker(self, fault: Fault) -> Broker:
        return self.brokers[1 + fault.which % len(self.brokers)]

    def member(self, fault: Fault) -> Any:
        return self.members[fault.which % len(self.members)]

    def partition(self, fault: Fault, *, is_safe: bool | None = None) -> Partition | None:
        found = [
            partition
            for topic in self.cluster.topics.values()
            if is_safe is None or topic.is_safe == is_safe
            for partition in topic.partitions
        ]
        return found[fault.which % len(found)] if found else None

    def trouble(self, name: str, seconds: float) -> None:
        """A host, or what lies between two, is in trouble."""
        self.waits.troubles.note(name, self.world.now_s, seconds)
        if self.shares is not None:
            self.shares.book.note_trouble(seconds)

    def hold(self, seconds: float) -> None:
        """Something is still to happen."""
        self._held_until_s = max(self._held_until_s, self.world.now_s + seconds)

    # Rest.
    def heal(self) -> None:
        """Start dead members again; nodes, brokers and links come back by themselves."""
        for member in self.members:
            if member.process is None or member.process.is_dead:
                member.start()

    def is_calm(self) -> bool:
        """The load and all faults are over."""
        return (
            self.world.now_s > START_S + LOAD_S
            and self.world.now_s > self._held_until_s
            and not self.cluster.down
            and not self.cluster.late_commits
            and not self.world.network.has_faults
            and not self.traps.is_set
            and not any(member.is_kept_out for member in self.members)
            and not any(broker.is_hung for broker in self.brokers.values())
            and not any(process.is_hung for process in self.world.processes)
        )

    def is_at_rest(self) -> bool:
        """Return whether all is read and committed.

        A member that has gone back may have learnt just now that its commit has failed.
        """
        if self.world.now_s < self._looked_s + LOOK_S:
            return False
        self._looked_s = self.world.now_s
        if self.producers.has_open or self.cluster.late_commits:
            return False
        if any(each.is_committing for each in self.members):
            return False
        if self.shares is not None and not self.shares.is_complete():
            return False
        return self.judgement.is_complete(self.lane_members)

    # The end.
    def crash_all(self) -> None:
        """Clients are gone, all nodes die at once, and come back; tools ask what they know."""
        self.judgement.note_unread(self.lane_members)
        if not self.scenario.nodes:
            self.judgement.served_s = self.nodes[0].served_s.copy()
        for process in self.world.processes:
            if not any(process is node.process for node in self.nodes):
                process.kill()
        for node in self.nodes:
            node.kill()
        self.tools = [admin.Tool(self, plan, f"audit-{plan.name}") for plan in self.scenario.groups]
        for tool in self.tools:
            tool.process.spawn(self._audit(tool), "audit")

    async def _audit(self, tool: admin.Tool) -> None:
        await tool.until_reported()
        tool.is_done = True

    def is_audited(self) -> bool:
        """Return whether all tools have their answers."""
        return all(tool.is_done for tool in self.tools)
