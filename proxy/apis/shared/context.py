"""The context of a handler: its client's connection, and what all sessions of the node share."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest as MetadataRequest12
from kio.schema.metadata.v12.request import MetadataRequestTopic as MetadataRequestTopic12
from kio.schema.types import TopicName

from keylane.config.node import ProxyConfig
from keylane.errors import TopicNotReady
from keylane.journal.owned import PreparedLock
from keylane.producers.sequence import SequenceMap
from keylane.proxy.apis.shared.request import Operation
from keylane.proxy.apis.shared.rights import BrokerTopic, ClientRights
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.commits.group_states import GroupStates
from keylane.proxy.commits.refreshes import Refreshes
from keylane.proxy.groups.consumer_groups import ConsumerGroups
from keylane.proxy.groups.gained_lanes import GainedLanes, MemberLanes
from keylane.proxy.groups.group_names import GroupNames
from keylane.proxy.groups.group_plans import Generations
from keylane.proxy.groups.load_turns import LoadTurns
from keylane.proxy.groups.patterns import ComparedPatterns
from keylane.proxy.lanes.fetch_request import LaneAnswer, LaneFetchRequest
from keylane.proxy.lanes.fetcher import LaneFetcher
from keylane.proxy.net.admission import Admission
from keylane.proxy.net.backlog import Backlog
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.net.security.login_watch import LoginWatch
from keylane.proxy.runtime.event_log import EventLog
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.runtime.turns import Turns
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.share.groups import OrderedGroups
from keylane.proxy.topics.node_values import Membership
from keylane.proxy.topics.pattern_turns import PatternTurns
from keylane.proxy.topics.placement import Placement, forget_gained
from keylane.proxy.topics.range_splits import RangeSplits
from keylane.proxy.topics.range_table import RangeTableHolder
from keylane.proxy.topics.range_views import RangeViews
from keylane.proxy.topics.registry import PhysicalTopic, TopicRegistry
from keylane.proxy.topics.switches import SwitchBoard
from keylane.proxy.topics.view import View

REFUSED_BY_BROKER: Final = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.topic_authorization_failed,
    ErrorCode.unknown_topic_id,
)
HIDDEN_MAX: Final = 1_000
"""Names of one connection; of more it is said that they are unknown, which clients ask again."""

NO_TOPIC_ID: Final = uuid.UUID(int=0)
ANY_BROKER: Final = -1
"""Broker id of the bootstrap listener."""
FETCH_RIGHT_S: Final = 10.0
"""A broker that has not said by then whether the client may read is looked for anew."""


@dataclass(slots=True, kw_only=True)
class Shared:
    """Parts that all sessions of a proxy use."""

    config: ProxyConfig
    cluster: Cluster
    fetcher: LaneFetcher
    groups: GroupOffsets
    """Offsets of groups on lanes."""
    loads: LaneLoads
    stats: ProxyStats
    admission: Admission
    switches: SwitchBoard
    ordered: OrderedGroups
    """Share groups in the order of keys."""
    clock: Callable[[], float]
    generations: Generations = field(default_factory=Generations)
    consumer_groups: ConsumerGroups = field(default_factory=ConsumerGroups)
    """KIP-848 groups on lanes."""
    sequences: SequenceMap = field(default_factory=SequenceMap)
    group_names: GroupNames = field(default_factory=GroupNames)
    """By which names the members of groups mean their topics."""
    assignments: RangeTableHolder = field(default_factory=RangeTableHolder)
    """Key ranges that client ids were given without a group."""
    range_views: RangeViews = field(init=False)
    """Views that these client ids have of topics."""
    asked_ranges: RangeSplits = field(init=False)
    """Key ranges that fetches name themselves."""
    gained_lanes: GainedLanes = field(default_factory=GainedLanes)
    """Lanes that are new to their members, of all connections."""
    refreshes: Refreshes = field(init=False)
    """Time when stable offsets of groups are committed again."""
    load_turns: LoadTurns = field(init=False)
    """Time when the load of groups is looked at."""
    event_log: EventLog = field(default_factory=lambda: EventLog(lambda: 0))
    """Events of groups, for operators."""
    patterns: ComparedPatterns = field(default_factory=ComparedPatterns)
    """Patterns of subscriptions, compared with lane topics."""
    pattern_turns: PatternTurns = field(init=False)
    turns: Turns = field(default_factory=Turns)
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Addresses at which clients reach brokers through keylane, by broker id."""
    bootstrap: tuple[str, int] = ("", 0)
    placement: Placement = field(default_factory=Placement)
    """The nodes that clients are sent to; the default is the lone node's."""

    def __post_init__(self) -> None:
        """One cache of views for all sessions, one clock for all groups."""
        self.refreshes = Refreshes(self.config.offsets_refresh_s)
        self.load_turns = LoadTurns(self.config.load_rebalance_interval_s)
        self.range_views = RangeViews(self.assignments)
        self.asked_ranges = RangeSplits(self.fetcher.retire)
        self.pattern_turns = PatternTurns(self.patterns)

    def update_nodes(self, membership: Membership) -> None:
        """Go by the nodes' agreement: places, rules, and the node that numbered a producer."""
        placement, cluster = self.placement, self.cluster
        assert placement.number is not None, "called among many nodes only"
        before = placement.update(membership)
        number = placement.number
        for known in (self.group_names, self.consumer_groups):
            known.forget_where(lambda group: placement.node_of_group(group) != number)
        cluster.update_nodes(placement.number, membership)
        forget_gained(self.sequences, cluster.registry, cluster.leaders, before, placement)


class Connection(Protocol):
    """The work of a session for its handlers."""

    session_id: str
    address: str
    principal: str | None
    """The name that the broker took; None before a login, and where its name is not known."""
    backlog: Backlog

    def send(self, frame: Buffers) -> Awaitable[Frame]:
        """Write to the client's own broker connection now; the answer can be awaited.

        Raises: GroupBusy, if the caller holds a group's lock and the client is joining again.
        """

    def send_unanswered(self, frame: Buffers) -> None:
        """Write a request that has no answer (acks=0)."""

    async def ask(self, entity: Any) -> Any:
        """Ask a kio request of keylane's own over the client's connection (its principal)."""

    async def caught_up(self) -> None:
        """Wait until the broker has answered all that this connection has asked so far.

        A handler with a group's lock must not wait for a JoinGroup or SyncGroup of its connection:
        that one waits for other members, and they wait for the lock. The broker takes the requests
        of a connection one by one, so this costs no time.
        """

    async def others_done(self) -> None:
        """Wait until every other handler of this connection has its answer."""

    def note_login(self, *, is_over: bool | None) -> None:
        """The broker took a token; whether that ends the login, None: unknown."""

    def note_principal(self, principal: str) -> None:
        """The broker says that the client is logged in, as this principal."""

    def aside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something of keylane's own with this connection; nothing once it is closed."""

    def release(self) -> None:
        """Let the next request of this connection proceed before this one is answered."""

    def held(self, lock: PreparedLock) -> AbstractAsyncContextManager[None]:
        """A group's lock, whose holder must not wait for a broker for too long.

        A broker that does not answer what is asked meanwhile for `HELD_ANSWER_S`, such as one that
        has muted the client for its quota, ends the connection.
        """


class Context:
    """The session as handlers see it."""

    def __init__(
        self, connection: Connection, shared: Shared, *, broker_id: int = ANY_BROKER
    ) -> None:
        self._connection, self._shared, self.clock = connection, shared, shared.clock
        self.broker_id = broker_id
        """The broker behind the listener that the client came to."""
        self.session_id = connection.session_id
        self.send, self.send_unanswered = connection.send, connection.send_unanswered
        self.ask, self.release, self.aside = connection.ask, connection.release, connection.aside
        self.caught_up, self.others_done = connection.caught_up, connection.others_done
        self.note_login, self.note_principal = connection.note_login, connection.note_principal
        self.config, self.stats = shared.config, shared.stats
        self.registry: TopicRegistry = shared.cluster.registry
        self.groups: GroupStates = shared.groups
        self.loads, self.sequences = shared.loads, shared.sequences
        self.assignments, self.range_views = shared.assignments, shared.range_views
        self.asked_ranges = shared.asked_ranges
        self.switches, self.placement = shared.switches, shared.placement
        self.generations, self.consumer_groups = shared.generations, shared.consumer_groups
        self.group_names, self.refreshes = shared.group_names, shared.refreshes
        self.load_turns, self.ordered = shared.load_turns, shared.ordered
        self.streams, self.event_log = shared.generations.streams, shared.event_log
        self._turns = turns = shared.turns
        self.in_thread, self.in_turn, self.pause = turns.in_thread, turns.in_turn, turns.pause
        ttl_s = self.config.authorization_ttl_s
        self._rights = ClientRights(connection.ask, ttl_s=ttl_s, clock=shared.clock)
        self.is_librdkafka = False
        """The client said so in ApiVersions (KIP-511)."""
        self.has_consumer_groups = False
        """The broker knows KIP-848, by its answer to ApiVersions."""
        self.gained_lanes = shared.gained_lanes
        self.member_lanes = MemberLanes(shared.gained_lanes)
        """Lanes that the member behind this connection was given and answered."""
        self.login = LoginWatch(subject_claim=self.config.principal_claim)
        self._hidden: set[str | uuid.UUID] = set()
        """Topics that the broker did not show for want of a right, as they were last asked for."""

    @property
    def user(self) -> str:
        """The client's principal; its address, where it has none that is known."""
        return self._connection.principal or self._connection.address

    def may_begin_group(self, group: str) -> bool:
        """Return whether the client may commit lanes in a group without offsets of lanes."""
        groups, admission = self._shared.groups, self._shared.admission
        return groups.has_offsets(group) or admission.may_begin_group(
            self._connection.principal, group, groups.still_has_offsets
        )

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Return the address of a broker, by its own id, at this node; None: it has none now."""
        return self._shared.addresses.get(node_id)

    async def ask_coordinator(self, group: str, entity: Any) -> Any:
        """Ask the group's coordinator with keylane's own login. Raises: UpstreamLost."""
        return await self._shared.cluster.ask_coordinator(group, entity)

    async def learn_brokers(self, entries: Any) -> None:
        """Take note of brokers in an answer; listeners are bound on return, where they can be."""
        await self._shared.cluster.learn_brokers(entries)

    async def refresh_topic(self, name: str) -> None:
        """Ask for a topic's partitions anew. Raises: UpstreamLost."""
        await self.refresh_topics((name,))

    async def refresh_topics(self, names: Collection[str]) -> None:
        """Ask for the partitions of topics anew, at once. Raises: UpstreamLost."""
        await self._shared.cluster.refresh_topics(names)

    def learn_topic(self, entry: Any) -> None:
        """Take note of a topic in a Metadata answer that has its id."""
        self._shared.cluster.learn_topic(entry)

    def read_racks(self, view: View) -> tuple[frozenset[str], ...]:
        """By partition, the rack that it is read from; empty where none is known."""
        return self._shared.cluster.read_racks(view.topic_id, view.layout.partition_count)

    async def find_view(self, name: str) -> View | None:
        """The lanes a name stands for; asks the client's broker when the topic is not known yet.

        None: plain, or unknown to the broker. A name that means lanes never passes for plain.
        Raises: UpstreamLost, when the broker does not know it yet.
        """
        found = self.registry.rule_of(name)
        if found is None:
            return None
        view = self.registry.view(name)
        if view is None and await self._ask_topic(name=TopicName(found[0])):
            view = self.registry.view(name)
        return view

    async def find_view_by_id(self, topic_id: uuid.UUID) -> View | None:
        """Do what `find_view` does, by the id that the client was given."""
        if topic_id == NO_TOPIC_ID:
            return None  # asked for it, a broker answers nothing of use
        view = self.registry.view_by_id(topic_id)
        if view is not None or self.registry.is_plain_id(topic_id):
            return view
        is_known = await self._ask_topic(topic_id=topic_id)
        return self.registry.view_by_id(topic_id) if is_known else None

    async def _ask_topic(
        self, *, name: TopicName | None = None, topic_id: uuid.UUID | None = None
    ) -> bool:
        """Learn a topic from the broker that would serve a relayed request.

        That broker, and not any other: if it does not know the topic, or does not show it to
        this client, it refuses what is relayed, and lanes cannot pass for partitions.
        """
        answer = await self.ask(_question(name=name, topic_id=topic_id))
        topic = answer.topics[0]
        self._shared.cluster.learn_topic(topic)
        code, asked = int(topic.error_code), topic_id or name or ""
        self._hidden.discard(asked)
        if code == ErrorCode.topic_authorization_failed and len(self._hidden) < HIDDEN_MAX:
            self._hidden.add(asked)
        if code in REFUSED_BY_BROKER:
            return False
        if code != 0:
            text = f"topic {name or topic_id} is not ready: {topic.error_code.name}"
            raise TopicNotReady(text, topic_error_code=code)
        return True

    def refusal_of(self, topic: str | uuid.UUID) -> int:
        """Return the Kafka code for a topic that the broker did not show when it was looked for."""
        asked = topic
        unknown = ErrorCode.unknown_topic_id
        if isinstance(topic, str):
            asked, unknown = (
                self.registry.physical_name(topic),
                ErrorCode.unknown_topic_or_partition,
            )
        return ErrorCode.topic_authorization_failed if asked in self._hidden else unknown

    async def find_topic(self, name: str) -> PhysicalTopic | None:
        """A topic by its own name; asks the client's broker when it is not known yet.

        None: the broker does not know it, or does not show it to this client.
        Raises: UpstreamLost, when the broker does not know it yet.
        """
        topic = self.registry.topics.get(name)
        if topic is None and await self._ask_topic(name=TopicName(name)):
            topic = self.registry.topics.get(name)
        return topic

    async def fetch_error(self, view: View) -> int:
        """Return `right_error` of READ; NOT_LEADER_OR_FOLLOWER if the broker is too slow.

        The client looks for the leader then, which may be another broker by now.
        """
        known = self._rights.known_topic_error(view, Operation.READ)
        if known is not None:
            return known
        try:
            return await self._turns.in_time(self.right_error(view, Operation.READ), FETCH_RIGHT_S)
        except TimeoutError:
            return ErrorCode.not_leader_or_follower

    async def right_error(self, view: BrokerTopic, operation: Operation) -> int:
        """Return the Kafka code that refuses the topic to the client's principal, else 0.

        Remembered for `authorization_ttl_s`.
        """
        return await self._rights.topic_error(view, operation)

    def known_right_error(self, view: BrokerTopic, operation: Operation) -> int | None:
        """Return `right_error`, where it is remembered; None: ask for it."""
        return self._rights.known_topic_error(view, operation)

    async def group_error(self, group: str, operation: Operation) -> int:
        """Return GROUP_AUTHORIZATION_FAILED if the group is refused to the principal, else 0.

        The broker has the last word with the request itself. This one comes before all that others
        could notice: the group's lock, names and patterns.
        """
        return await self._rights.group_error(group, operation)

    def hold(self, group: str) -> AbstractAsyncContextManager[None]:
        """The group's lock (`GroupStates.lock`), while the client's broker is not too slow."""
        return self._connection.held(self.groups.lock(group))

    async def match_pattern(self, pattern: str, topics: tuple[str, ...]) -> tuple[str, ...] | None:
        """The topics that a pattern matches, beside the event loop; None: ask again.

        Raises: PatternUnreadable.
        """
        return await self._shared.pattern_turns.compare(pattern, topics)

    async def may_alter_cluster(self) -> bool:
        """Return whether the client's principal may ALTER the cluster; remembered as rights are."""
        return await self._rights.may_alter_cluster()

    def leader_elsewhere(
        self, topic: str, topic_id: uuid.UUID, partition: int
    ) -> tuple[int, int, tuple[str, int] | None] | None:
        """Return (id, epoch, address) of a partition's leader, as clients know it.

        None: it is the broker that the client came to, or not known.
        """
        leader_id, epoch = self._shared.cluster.leaders.get((topic_id, partition), (-1, -1))
        if leader_id < 0 or self.broker_id == ANY_BROKER:
            return None
        placement, count = self.placement, self.registry.count_of(topic)
        number = placement.node_of_partition(topic, partition, count, leader_id)
        if leader_id == self.broker_id and number == placement.number:
            return None
        shown_id = placement.virtual_id(number, leader_id)
        addresses = dict(placement.endpoints(leader_id, self.address_of(leader_id)))
        return shown_id, epoch, addresses.get(shown_id)

    async def name_of_id(self, topic_id: uuid.UUID) -> str | None:
        """The broker's name of a topic id; asks the client's broker when it is not known yet."""
        name = self.registry.name_of_id(topic_id)
        if name is None and topic_id != NO_TOPIC_ID:
            answer = await self.ask(_question(topic_id=topic_id))
            self._shared.cluster.learn_topic(answer.topics[0])
            name = answer.topics[0].name
        return name

    async def fetch_lanes(self, request: LaneFetchRequest) -> list[LaneAnswer]:
        """Serve lanes; one answer per lane, in order."""
        return await self._shared.fetcher.fetch(request)

    @property
    def is_followed(self) -> bool:
        """Return whether a request that is no Fetch waits behind the one that is served."""
        return self._connection.backlog.has_other_than_fetch

    def hurry_fetch(self) -> None:
        """Let a fetch of lanes wait no longer for new data, if a request waits behind it."""
        if self.is_followed:
            self._shared.fetcher.hurry(self.session_id)

    def log_end(self, view: View, partition: int, isolation_level: int) -> tuple[int, int] | None:
        """(log end, log start) of a Fetch answer of a moment ago, None when not fresh."""
        return self._shared.fetcher.log_end(
            view.topic_id,
            partition,
            isolation_level,
            now_s=self.clock(),
            age_s_max=self.config.offsets_age_ms_max / 1000,
        )


def _question(
    *, name: TopicName | None = None, topic_id: uuid.UUID | None = None
) -> MetadataRequest12:
    return MetadataRequest12(
        topics=(MetadataRequestTopic12(topic_id=topic_id, name=name),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
