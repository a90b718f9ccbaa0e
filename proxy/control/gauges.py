"""Gauges for /metrics: lag of groups on their lanes, cheap and bounded in series; and of a node.

Source: Prometheus, "Do not overuse labels".

A series per lane would be 10,000 series for one group. Here are three per group and topic, of the
SERIES_MAX that are furthest behind. `GET /groups/NAME` has lanes and members one by one.
Lag counts offsets, as Kafka's tools do. Only partitions that are being read through this process
have a log end here: of a group that stopped, ask Kafka (the stable offset is Kafka's own).
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy.runtime.stats import GAUGE, Sample
from keylane.proxy.topics.node_values import NO_NODE, Membership

SERIES_MAX: Final = 100
"""Groups and topics that are listed one by one: three series each."""
LABEL_CHARS_MAX: Final = 249
"""Kafka's bound of a topic name; a group id may be longer, and is cut."""

Ends = Mapping[tuple[uuid.UUID, int], int]
"""Log end by topic id and partition."""

LANES: Final = "Lanes of the partitions that are being read."
GROUPS: Final = "Groups with offsets on lanes."
STATES: Final = "Offset states: one for each group and partition with offsets on lanes."
RANGES: Final = "Committed offset ranges beyond stable offsets, of all groups."
LEFT_OUT: Final = "Pairs of group and topic without series: those that are least behind."
STABLE_LAG: Final = (
    "Offsets from the stable offset to the log end, over all partitions being read: "
    "what Kafka's own tools call the lag."
)
LANE_LAG: Final = "Offsets from the slowest lane to the log end of its partition."
SPREAD: Final = "Offsets from the slowest lane to the fastest one of its partition."
MEMBERS: Final = "Nodes in front of the cluster, by the last agreement with this one."
OWNED: Final = "Partitions of the journal whose groups this node serves now."
UNSERVED: Final = "Partitions of the journal that no node serves."
DISPUTED: Final = "Topics that are refused, since nodes do not agree on their lanes."


@dataclass(slots=True)
class _Behind:
    stable_lag: int = 0
    lane_lag: int = 0
    spread: int = 0

    def add(self, stable: int, fastest: int, end: int) -> None:
        """Take in one partition: its slowest lane, its fastest, its log end."""
        lag = max(0, end - stable)
        self.stable_lag += lag
        self.lane_lag = max(self.lane_lag, lag)
        self.spread = max(self.spread, min(end, fastest) - stable)


class GroupGauges:
    """Looks at all states for each scrape; anew at those that a commit has replaced since."""

    def __init__(
        self,
        states: Callable[[], Iterable[tuple[StateKey, OffsetState]]],
        log_ends: Callable[[], Ends],
        lane_count: Callable[[], int],
    ) -> None:
        self._states, self._log_ends, self._lane_count = states, log_ends, lane_count
        self._seen: dict[StateKey, tuple[OffsetState, int, int]] = {}
        """(state, its slowest lane, its fastest): a state is never changed, but replaced."""

    def samples(self) -> Iterator[Sample]:
        """Yield the numbers. Cost: 4 microseconds per state, and 0.1 per lane of replaced ones."""
        ends, seen = self._log_ends(), self._seen
        self._seen = {}
        groups: set[str] = set()
        state_count = range_count = 0
        behind: dict[tuple[str, str], _Behind] = {}
        for key, state in self._states():
            groups.add(key.group)
            state_count += 1
            range_count += state.range_count
            end = ends.get((key.topic_id, key.partition))
            if end is not None and state.committed:
                known = seen.get(key)
                if known is None or known[0] is not state:
                    known = (state, state.stable_position, state.fastest_position)
                self._seen[key] = known
                place = (key.group[:LABEL_CHARS_MAX], state.topic_name)
                behind.setdefault(place, _Behind()).add(known[1], known[2], end)
        yield Sample("keylane_lanes", GAUGE, LANES, (), self._lane_count())
        yield Sample("keylane_groups", GAUGE, GROUPS, (), len(groups))
        yield Sample("keylane_offset_states", GAUGE, STATES, (), state_count)
        yield Sample("keylane_individual_commits", GAUGE, RANGES, (), range_count)
        reported = heapq.nlargest(SERIES_MAX, behind, key=lambda place: behind[place].lane_lag)
        unlogged = len(behind) - len(reported)
        yield Sample("keylane_group_series_left_out", GAUGE, LEFT_OUT, (), unlogged)
        for name, text, field in (
            ("keylane_group_stable_lag", STABLE_LAG, "stable_lag"),
            ("keylane_group_lane_lag_max", LANE_LAG, "lane_lag"),
            ("keylane_group_lane_spread_max", SPREAD, "spread"),
        ):
            for group, topic in sorted(reported):
                labels = (("group", group), ("topic", topic))
                yield Sample(name, GAUGE, text, labels, getattr(behind[group, topic], field))


class NodeGauges:
    """Gauges of a node with a number; the only node has none of them."""

    def __init__(
        self,
        number: int,
        membership: Callable[[], Membership | None],
        holds: Callable[[int], bool],
        disputes: Callable[[], Mapping[str, str]],
    ) -> None:
        """`holds` says whether this node serves a partition at this moment."""
        self._number, self._membership = number, membership
        self._holds, self._disputes = holds, disputes

    def samples(self) -> Iterator[Sample]:
        """Yield the numbers as they are now; a node whose lease is over serves nothing."""
        known = self._membership()
        owned = known.owned_by(self._number) if known else ()
        values = (
            ("node_members", MEMBERS, len(known.nodes) if known else 0),
            ("node_partitions_owned", OWNED, sum(map(self._holds, owned))),
            ("node_partitions_unserved", UNSERVED, known.owners.count(NO_NODE) if known else 0),
            ("topics_disputed", DISPUTED, len(self._disputes())),
        )
        for name, text, value in values:
            yield Sample(f"keylane_{name}", GAUGE, text, (), value)
