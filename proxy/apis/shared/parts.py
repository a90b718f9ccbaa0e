"""Parts of a node that all its sessions use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from keylane.config.node import ProxyConfig
from keylane.producers.sequence import SequenceMap
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.commits.refreshes import Refreshes
from keylane.proxy.groups.gained_lanes import GainedLanes
from keylane.proxy.groups.group_names import GroupNames
from keylane.proxy.groups.group_plans import Generations
from keylane.proxy.groups.patterns import SubscribedPatterns
from keylane.proxy.lanes.fetcher import LaneFetcher
from keylane.proxy.net.admission import Admission
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.runtime.turns import Turns
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.node_values import Membership
from keylane.proxy.topics.pattern_turns import PatternTurns
from keylane.proxy.topics.placement import Placement, forget_gained
from keylane.proxy.topics.range_table import RangeTableHolder
from keylane.proxy.topics.range_views import RangeViews
from keylane.proxy.topics.switches import SwitchBoard


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
    clock: Callable[[], float]
    generations: Generations = field(default_factory=Generations)
    sequences: SequenceMap = field(default_factory=SequenceMap)
    group_names: GroupNames = field(default_factory=GroupNames)
    """By which names the members of groups mean their topics."""
    assignments: RangeTableHolder = field(default_factory=RangeTableHolder)
    """Key ranges that client ids were given without a group."""
    range_views: RangeViews = field(init=False)
    """Views that these client ids have of topics."""
    gained_lanes: GainedLanes = field(default_factory=GainedLanes)
    """Lanes that are new to their members, of all connections."""
    refreshes: Refreshes = field(init=False)
    """Time when stable offsets of groups are committed again."""
    patterns: SubscribedPatterns = field(default_factory=SubscribedPatterns)
    """Of KIP-848 members."""
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
        self.range_views = RangeViews(self.assignments)
        self.pattern_turns = PatternTurns(self.patterns)

    def update_nodes(self, membership: Membership) -> None:
        """Go by the nodes' agreement: places, rules, and the node that numbered a producer."""
        placement, cluster = self.placement, self.cluster
        assert placement.number is not None, "called among many nodes only"
        before = placement.update(membership)
        number = placement.number
        self.group_names.forget_where(lambda group: placement.node_of_group(group) != number)
        cluster.update_nodes(placement.number, membership)
        forget_gained(self.sequences, cluster.registry, cluster.leaders, before, placement)
