"""What a handler may use: the request, and the outside world as a Protocol.

In:    a frame and its header.  Out: the same, rebuilt or answered.
Source: Kafka protocol guide, request and response headers v0 to v2.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from keylane.config.node import ProxyConfig
from keylane.offsets.lineage import EpochStart
from keylane.offsets.pushes import Pushes
from keylane.offsets.records.journal import StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.producers.sequence import SequenceMap
from keylane.proxy.commits.group_states import LOCK_WAIT_S
from keylane.proxy.commits.late_pushes import LatePushes
from keylane.proxy.commits.layouts import Layouts
from keylane.proxy.commits.push_journal import PushJournal
from keylane.proxy.commits.refreshes import Refreshes
from keylane.proxy.groups.gained_lanes import GainedLanes, MemberLanes
from keylane.proxy.groups.group_names import GroupNames
from keylane.proxy.groups.group_plans import Generations
from keylane.proxy.groups.patterns import SubscribedPatterns
from keylane.proxy.lanes.fetcher import LaneAnswer, LaneFetchRequest
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.net.security.login_watch import LoginWatch
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.topics.placement import Placement
from keylane.proxy.topics.range_table import RangeTableHolder
from keylane.proxy.topics.range_views import RangeViews
from keylane.proxy.topics.registry import PhysicalTopic, TopicRegistry
from keylane.proxy.topics.switches import SwitchBoard
from keylane.proxy.topics.view import View

Result = TypeVar("Result")


class Operation(enum.IntEnum):
    """What may be done with a topic; the values are Kafka's own (`AclOperation`)."""

    READ = 3
    WRITE = 4
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8


class Groups(Protocol):
    """Offsets of groups on lanes (`proxy.commits.group_offsets`)."""

    pushes: Pushes
    """Which of Kafka's own offsets a transaction may be about to change."""
    late: LatePushes
    """Stable offsets that could stand further, were it known what lies behind them."""
    layouts: Layouts
    """Names of lanes that groups have offsets by."""

    @property
    def sees_ends(self) -> bool:
        """Whether the end of each transaction passes this node: there is no other."""

    def lock(
        self, group: str, wait_s: float | None = LOCK_WAIT_S
    ) -> AbstractAsyncContextManager[Any]:
        """Held while offsets of a group are read or changed: one at a time, in order.

        wait_s: how long it is waited for at most, None: without end; GroupBusy then.
        Entering raises NotCoordinator where another node serves the group; so does all that is
        asked of its states inside, once that has become so. UpstreamLost: they cannot be loaded.
        """

    def check_tenure(self, group: str) -> None:
        """Asked right before something that was made of a state is sent to the broker.

        Raises: NotCoordinator, when another node may have changed the state since.
        """

    def has_state(self, key: StateKey) -> bool:
        """Whether the group has one, which a commit of the partition itself must not pass by."""

    def state_of(self, group: str, view: View, partition: int) -> OffsetState | None:
        """The state of a group on a partition; not to be changed, copy it. None: it has none."""

    def is_unsure(self, group: str, view: View, partition: int) -> bool:
        """Whether only what members said is sure of a state: its log may have been cut since."""

    def lacks(self, group: str) -> bool:
        """Whether the group's states are this node's, and would be loaded with its next call."""

    async def ready(self, group: str) -> None:
        """Load the group's states unless they are. Raises: NotCoordinator, UpstreamLost."""

    def note_asked(self, group: str) -> None:
        """A client is about to be answered where the group's lanes stand; the lock comes next."""

    async def adopt(
        self,
        group: str,
        view: View,
        partition: int,
        kafka_committed: int | None,
        metadata: str | None = None,
    ) -> OffsetState:
        """The state, brought in line with Kafka's own group offset; not to be changed.

        metadata: of that offset; what a transaction committed of lanes stands there.
        A group without any offset gets a state that is not kept before it is saved.
        Raises: UpstreamLost, when the log start is needed and cannot be learnt.
        """

    async def repair(self, group: str) -> None:
        """Bring states in line with logs that were cut; the group's lock is held.

        Raises: NotCoordinator.
        """

    def sure_scan(self, key: StateKey, view: View) -> ScanIndex:
        """What was scanned of a partition, and is sure to be of the state's log; not to change."""

    def lead_on(self, state: OffsetState, key: StateKey, view: View) -> None:
        """Move a state by all that is known: where the log begins, and what was scanned."""

    async def wait_scanned(self, group: str, lanes: Iterable[tuple[View, int, int]]) -> None:
        """Wait a moment for scans by other nodes of what is being committed; alone, not at all.

        lanes: view, index, and the offset to be committed.
        """

    async def save(self, group: str, states: Sequence[tuple[View, int, OffsetState]]) -> None:
        """Put states in place, write what is new to the journal and wait for the ack.

        Raises: UpstreamLost; the states are in place all the same, and saved with the next ones.
        """

    def concluded_epoch(self, key: StateKey, state: OffsetState) -> EpochStart | None:
        """The leader epoch before the furthest conclusion of a state; None: it is not known.

        Raises: NotCoordinator.
        """

    def may_come_late(self, key: StateKey) -> bool:
        """Whether a push without an answer may still come into effect. Raises: NotCoordinator."""

    def push_journal(self, group: str) -> PushJournal:
        """For pushes to Kafka's own offsets; the group's lock is held. Raises: NotCoordinator."""

    def note_used(self, group: str, view: View) -> None:
        """The broker has taken a commit of the group under this name; `note_commits` notes it."""

    def note_commits(self, group: str, view: View, indexes: Sequence[int]) -> None:
        """Lanes were committed just now: for who looks at the group."""

    async def drop(self, group: str, places: Sequence[tuple[View, int]]) -> None:
        """Delete the group's states on partitions. Raises: UpstreamLost."""

    async def drop_group(self, group: str) -> None:
        """Delete all states of a group. Raises: UpstreamLost."""

    def lane_names_of(self, group: str) -> Sequence[str]:
        """Lane names that the group has used since the start."""

    def has_offsets(self, group: str) -> bool:
        """Whether the group has offsets of lanes. Raises: as `topics_of`."""

    def states_of(self, group: str) -> Mapping[StateKey, OffsetState]:
        """All states of a group; not to be changed. Raises: NotCoordinator."""

    def topics_of(self, group: str) -> set[str]:
        """Topics, by their own names, on which the group has offsets of lanes.

        Raises: NotCoordinator, also while they are not loaded.
        """


class Loads(Protocol):
    """Load of lanes as readers measured it (`proxy.scans.loads`)."""

    def bytes_per_s(self, view: View) -> dict[int, float]:
        """By lane index; lanes that were not measured yet are missing."""

    def records_per_s(self, view: View) -> dict[int, float]:
        """By lane index; lanes that were not measured yet are missing."""


class Context(Protocol):
    """The session as handlers see it."""

    session_id: str

    @property
    def user(self) -> str:
        """The client's principal; its address, where it has none that is known."""

    config: ProxyConfig
    registry: TopicRegistry
    patterns: SubscribedPatterns
    """Of KIP-848 members."""
    sequences: SequenceMap
    generations: Generations
    refreshes: Refreshes
    """When stable offsets of groups are committed again."""
    group_names: GroupNames
    """By which names the members of groups mean their topics."""
    assignments: RangeTableHolder
    """Key ranges that client ids were given without a group."""
    range_views: RangeViews
    """What topics are to these client ids."""
    switches: SwitchBoard
    stats: ProxyStats
    clock: Callable[[], float]
    placement: Placement
    """Where clients are sent among many nodes."""
    is_librdkafka: bool
    """The client said so in ApiVersions (KIP-511)."""
    gained_lanes: GainedLanes
    """Lanes that are new to their members, of all connections."""
    member_lanes: MemberLanes
    """What the member behind this connection was given and answered."""
    login: LoginWatch

    @property
    def groups(self) -> Groups:
        """Offsets of groups on lanes."""

    @property
    def loads(self) -> Loads:
        """Load of lanes."""

    async def in_thread(self, function: Callable[..., Result], *args: object) -> Result:
        """Compute what takes long beside the event loop."""

    async def in_turn(self, function: Callable[..., Result], *args: object) -> Result:
        """As `in_thread`, one at a time of all connections: for what any client can ask for."""

    async def pause(self, seconds: float) -> None:
        """Wait for what has no event."""

    def send(self, frame: Buffers) -> Awaitable[Frame]:
        """Write to the client's own broker connection now; the answer can be awaited."""

    def send_unanswered(self, frame: Buffers) -> None:
        """Write a request that has no answer (acks=0)."""

    async def ask(self, entity: Any) -> Any:
        """Ask a kio request of keylane's own over the client's connection (its principal)."""

    async def caught_up(self) -> None:
        """Wait until the broker has answered all that this connection has asked so far.

        Who holds a group's lock must not wait for a JoinGroup or SyncGroup of its connection,
        which waits for other members, who wait for the lock. The broker takes the requests of
        a connection one by one, so this costs no time.
        """

    async def others_done(self) -> None:
        """Wait until every other handler of this connection has its answer."""

    def note_login(self, *, is_over: bool | None) -> None:
        """The broker took a token; whether that ends the login, None: unknown."""

    def note_principal(self, principal: str) -> None:
        """The broker says that the client is logged in, as this principal."""

    def may_begin_group(self, group: str) -> bool:
        """Whether the client may commit lanes in a group that has no offsets of lanes yet."""

    def aside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something of keylane's own with this connection; nothing once it is closed."""

    def release(self) -> None:
        """Let the next request of this connection proceed before this one is answered."""

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Where clients reach a broker, by its own id, through this node."""

    async def learn_brokers(self, entries: Any) -> None:
        """Take note of brokers in an answer; listeners are bound on return."""

    def learn_topic(self, entry: Any) -> None:
        """Take note of a topic in a Metadata answer that has its id."""

    def read_racks(self, view: View) -> tuple[frozenset[str], ...]:
        """By partition, the rack that it is read from; empty where none is known."""

    async def find_view(self, name: str) -> View | None:
        """The lanes a name stands for; asks the cluster when the topic is not known yet."""

    async def find_view_by_id(self, topic_id: uuid.UUID) -> View | None:
        """As `find_view`, by the id that Metadata has given the client."""

    async def find_topic(self, name: str) -> PhysicalTopic | None:
        """A topic by its own name; asks the cluster when it is not known yet. None: unknown."""

    def refusal_of(self, topic: str | uuid.UUID) -> int:
        """Why the broker did not show a topic when it was looked for: a Kafka code."""

    async def fetch_error(self, view: View) -> int:
        """As `right_error` of READ; NOT_LEADER_OR_FOLLOWER where the broker does not say in time.

        The client looks for the leader then, which may be another broker by now.
        """

    async def right_error(self, view: View, operation: Operation) -> int:
        """Why the client's own principal is refused the topic: a Kafka code, 0 when it is not.

        Remembered for `authorization_ttl_s`.
        """

    async def group_error(self, group: str, operation: Operation) -> int:
        """As `right_error`, of a group: GROUP_AUTHORIZATION_FAILED, or 0 where it is not refused.

        The broker has the last word with the request itself. This one comes before all that others
        could notice: the group's lock, names and patterns.
        """

    def hold(self, group: str) -> AbstractAsyncContextManager[Any]:
        """The group's lock (`Groups.lock`), for as long as the client's broker is not too slow.

        A broker that does not answer what is asked meanwhile for `HELD_ANSWER_S`, such as one that
        has muted the client for its quota, ends the connection.
        """

    async def match_pattern(self, pattern: str, topics: tuple[str, ...]) -> tuple[str, ...] | None:
        """The topics that a pattern matches, beside the event loop; None: ask again.

        Raises: PatternUnreadable.
        """

    async def may_alter_cluster(self) -> bool:
        """Whether the client's own principal may ALTER the cluster; remembered as rights are."""

    async def name_of_id(self, topic_id: uuid.UUID) -> str | None:
        """The broker's name of a topic id; asks the client's broker when it is not known yet."""

    async def fetch_lanes(self, request: LaneFetchRequest) -> list[LaneAnswer]:
        """Serve lanes; one answer per lane, in order."""

    def log_end(self, view: View, partition: int, isolation_level: int) -> tuple[int, int] | None:
        """(log end, log start) of a Fetch answer of a moment ago, None when not fresh."""

    async def log_start(self, view: View, partition: int) -> int:
        """The partition's first offset. Raises: UpstreamLost."""
