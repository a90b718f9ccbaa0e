"""The outside world of a handler: one session, and what all sessions share.

In:    what handlers ask for.  Out: answers from the client's connection, or from shared parts.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest as MetadataRequest12
from kio.schema.metadata.v12.request import MetadataRequestTopic as MetadataRequestTopic12
from kio.schema.types import TopicName

from keylane.config.node import ProxyConfig
from keylane.errors import GroupBusy, TopicNotReady
from keylane.journal.owned import InTime, PreparedLock
from keylane.producers.sequence import SequenceMap
from keylane.proxy.apis.shared.context import Operation
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.commits.refreshes import Refreshes
from keylane.proxy.groups.gained_lanes import GainedLanes, MemberLanes
from keylane.proxy.groups.group_names import GroupNames
from keylane.proxy.groups.group_plans import Generations
from keylane.proxy.groups.patterns import SubscribedPatterns
from keylane.proxy.lanes.fetcher import LaneAnswer, LaneFetcher, LaneFetchRequest
from keylane.proxy.net.admission import Admission
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.net.security.login_watch import LoginWatch
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.session.lock_holders import HELD_ANSWER_S, Holding
from keylane.proxy.session.pattern_turns import PatternTurns
from keylane.proxy.session.rights import GroupRights, TopicRights
from keylane.proxy.session.session import ClientSession
from keylane.proxy.topics.handover import forget_gained
from keylane.proxy.topics.node_values import Membership
from keylane.proxy.topics.placement import Placement
from keylane.proxy.topics.range_table import RangeTableHolder
from keylane.proxy.topics.range_views import RangeViews
from keylane.proxy.topics.registry import PhysicalTopic, TopicRegistry
from keylane.proxy.topics.switches import SwitchBoard
from keylane.proxy.topics.view import View

Result = TypeVar("Result")
REFUSED_BY_BROKER: Final = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.topic_authorization_failed,
    ErrorCode.unknown_topic_id,
)
HIDDEN_MAX: Final = 1_000
"""Names of one connection; of more it is said that they are unknown, which clients ask again."""

NO_TOPIC_ID: Final = uuid.UUID(int=0)


@dataclass(slots=True, kw_only=True)
class Shared:
    """What all sessions of a proxy use."""

    config: ProxyConfig
    cluster: Cluster
    fetcher: LaneFetcher
    groups: GroupOffsets
    loads: LaneLoads
    stats: ProxyStats
    admission: Admission
    switches: SwitchBoard
    generations: Generations = field(default_factory=Generations)
    group_names: GroupNames = field(default_factory=GroupNames)
    sequences: SequenceMap = field(default_factory=SequenceMap)
    assignments: RangeTableHolder = field(default_factory=RangeTableHolder)
    range_views: RangeViews = field(init=False)
    gained_lanes: GainedLanes = field(default_factory=GainedLanes)
    refreshes: Refreshes = field(init=False)
    patterns: SubscribedPatterns = field(default_factory=SubscribedPatterns)
    pattern_turns: PatternTurns = field(init=False)
    turns: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="large")
    )
    """Reads and writes what has many entries."""
    addresses: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Where clients reach each broker through keylane, by broker id."""
    bootstrap: tuple[str, int] = ("", 0)
    placement: Placement = field(default_factory=Placement)
    """Where clients are sent among many nodes; the default is the lone node's."""

    def __post_init__(self) -> None:
        """One cache of views for all sessions, one clock for all groups."""
        self.refreshes = Refreshes(self.config.offsets_refresh_s)
        self.range_views = RangeViews(self.assignments)
        self.pattern_turns = PatternTurns(self.patterns)

    def update_nodes(self, membership: Membership) -> None:
        """Go by what the nodes have agreed on: places, rules, who has numbered producers."""
        placement, cluster = self.placement, self.cluster
        assert placement.number is not None, "told among many nodes"
        before = placement.update(membership)
        number = placement.number
        self.group_names.forget_where(lambda group: placement.node_of_group(group) != number)
        cluster.update_nodes(placement.number, membership)
        forget_gained(self.sequences, cluster.registry, cluster.leaders, before, placement)


class HeldLock:
    """A group's lock in the hands of a handler. No generator: each commit enters it."""

    __slots__ = ("_begun", "_holding", "_lock", "_stats")

    def __init__(self, lock: PreparedLock | InTime, holding: Holding, stats: ProxyStats) -> None:
        self._lock, self._holding, self._stats = lock, holding, stats
        self._begun: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> None:
        """Raises: GroupBusy, NotCoordinator, UpstreamLost."""
        try:
            await self._lock.__aenter__()
        except GroupBusy:
            self._stats.group_waits_refused += 1
            raise
        self._begun = self._holding.begin()

    async def __aexit__(self, *error: object) -> None:
        self._holding.end(self._begun)
        await self._lock.__aexit__(*error)


class SessionContext:
    """Implements `apis.context.Context` for one client connection."""

    def __init__(self, session: ClientSession, shared: Shared) -> None:
        self._session, self._shared = session, shared
        self.session_id = session.session_id
        self.config = shared.config
        self.registry: TopicRegistry = shared.cluster.registry
        self.groups = shared.groups
        self.sequences = shared.sequences
        self.assignments, self.range_views = shared.assignments, shared.range_views
        self.switches = shared.switches
        self.placement = shared.placement
        self.patterns = shared.patterns
        self.generations = shared.generations
        self.group_names, self.refreshes = shared.group_names, shared.refreshes
        self.loads: LaneLoads = shared.loads
        self.stats = shared.stats
        self.clock: Callable[[], float] = time.monotonic
        self._rights = TopicRights(
            session.ask, ttl_s=self.config.authorization_ttl_s, clock=self.clock
        )
        self._group_rights = GroupRights(
            session.ask, ttl_s=self.config.authorization_ttl_s, clock=self.clock
        )
        self.is_librdkafka = False
        self.gained_lanes = shared.gained_lanes
        self.member_lanes = MemberLanes(shared.gained_lanes)
        self.login = LoginWatch(subject_claim=self.config.principal_claim)
        self._hidden: set[str | uuid.UUID] = set()
        """Topics that the broker did not show for want of a right, as they were last asked for."""

    @property
    def user(self) -> str:
        """The client's principal; its address, where it has none that is known."""
        return self._session.principal or self._session.address

    async def pause(self, seconds: float) -> None:
        """Wait for what no event tells."""
        await asyncio.sleep(seconds)

    def send(self, frame: Buffers) -> Awaitable[Frame]:
        """Write to the client's own broker connection now; the answer can be awaited."""
        return self._session.send(frame)

    def send_unanswered(self, frame: Buffers) -> None:
        """Write a request that has no answer (acks=0)."""
        self._session.send_unanswered(frame)

    async def ask(self, entity: Any) -> Any:
        """Ask a kio request of keylane's own over the client's connection (its principal)."""
        return await self._session.ask(entity)

    async def caught_up(self) -> None:
        """Wait until the broker has answered all that this connection has asked so far."""
        await self._session.caught_up()

    async def others_done(self) -> None:
        """Wait until every other handler of this connection has its answer."""
        await self._session.others_done()

    def note_login(self, *, is_over: bool | None) -> None:
        """The broker took a token; whether that ends the login, None: unknown."""
        self._session.note_login(is_over=is_over)

    def note_principal(self, principal: str) -> None:
        """The broker says that the client is logged in, as this principal."""
        self._session.note_principal(principal)

    def may_begin_group(self, group: str) -> bool:
        """Whether the client may commit lanes in a group that has no offsets of lanes yet."""
        groups, admission = self._shared.groups, self._shared.admission
        return groups.has_offsets(group) or admission.may_begin_group(
            self._session.principal, group, groups.still_has_offsets
        )

    def aside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something of keylane's own with this connection; nothing once it is closed."""
        self._session.aside(work)

    def release(self) -> None:
        """Let the next request of this connection proceed before this one is answered."""
        self._session.release()

    async def in_thread(self, function: Callable[..., Result], *args: object) -> Result:
        """Compute what takes long for this loop, which serves everyone else meanwhile."""
        return await asyncio.to_thread(function, *args)

    async def in_turn(self, function: Callable[..., Result], *args: object) -> Result:
        """As `in_thread`, one at a time of all connections."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._shared.turns, function, *args)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Where clients reach a broker, by its own id, through this node; None: nowhere now."""
        return self._shared.addresses.get(node_id)

    async def learn_brokers(self, entries: Any) -> None:
        """Take note of brokers in an answer; listeners are bound on return, where they can be."""
        await self._shared.cluster.learn_brokers(entries)

    def learn_topic(self, entry: Any) -> None:
        """Take note of a topic in a Metadata answer that has its id."""
        self._shared.cluster.learn_topic(entry)

    def read_racks(self, view: View) -> tuple[frozenset[str], ...]:
        """By partition, the rack that it is read from; empty where none is known."""
        return self._shared.cluster.read_racks(view.topic_id, view.layout.partition_count)

    async def find_view(self, name: str) -> View | None:
        """The lanes a name stands for; asks the client's broker when the topic is not known yet.

        None: plain, or unknown to the broker. A name that means lanes never passes for plain.
        Raises: UpstreamLost, when the broker cannot tell yet.
        """
        found = self.registry.rule_of(name)
        if found is None:
            return None
        view = self.registry.view(name)
        if view is None and await self._ask_topic(name=TopicName(found[0])):
            view = self.registry.view(name)
        return view

    async def find_view_by_id(self, topic_id: uuid.UUID) -> View | None:
        """As `find_view`, by the id that the client was told."""
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
        """Why the broker did not show a topic when it was looked for: a Kafka code."""
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
        Raises: UpstreamLost, when the broker cannot tell yet.
        """
        topic = self.registry.topics.get(name)
        if topic is None and await self._ask_topic(name=TopicName(name)):
            topic = self.registry.topics.get(name)
        return topic

    async def fetch_error(self, view: View) -> int:
        """Why the client may not fetch lanes of the topic now: a Kafka code, 0 when it may."""
        known = self._rights.known_error(view, Operation.READ)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(HELD_ANSWER_S):
                return await self.right_error(view, Operation.READ)
        except TimeoutError:
            return ErrorCode.not_leader_or_follower

    async def right_error(self, view: View, operation: Operation) -> int:
        """Why the client's own principal is refused the topic: a Kafka code, 0 when it is not."""
        return await self._rights.error(view, operation)

    async def group_error(self, group: str, operation: Operation) -> int:
        """Why the client's own principal is refused the group: a Kafka code, 0 when it is not."""
        return await self._group_rights.error(group, operation)

    def hold(self, group: str) -> HeldLock:
        """The group's lock, for as long as the client's broker is not too slow."""
        return HeldLock(self._shared.groups.lock(group), self._session.holding, self.stats)

    async def match_pattern(self, pattern: str, topics: tuple[str, ...]) -> tuple[str, ...] | None:
        """The topics that a pattern matches, beside the event loop; None: ask again."""
        return await self._shared.pattern_turns.compare(pattern, topics)

    async def may_alter_cluster(self) -> bool:
        """Whether the client's own principal may ALTER the cluster; remembered as rights are."""
        return await self._rights.may_alter_cluster()

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

    def log_end(self, view: View, partition: int, isolation_level: int) -> tuple[int, int] | None:
        """(log end, log start) from what Fetch told a moment ago, None when not fresh."""
        return self._shared.fetcher.log_end(
            view.topic_id,
            partition,
            isolation_level,
            now_s=self.clock(),
            age_s_max=self.config.offsets_age_ms_max / 1000,
        )

    async def log_start(self, view: View, partition: int) -> int:
        """The partition's first offset. Raises: UpstreamLost."""
        return await self._shared.groups.log_start(view, partition)


def _question(
    *, name: TopicName | None = None, topic_id: uuid.UUID | None = None
) -> MetadataRequest12:
    return MetadataRequest12(
        topics=(MetadataRequestTopic12(topic_id=topic_id, name=name),),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
