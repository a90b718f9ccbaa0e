"""Which topics are seen as lanes, under which names and ids.

In:    the configuration's rules, what Metadata tells.  Out: a `View` per name or id.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from keylane.config.node import LANES_MAX, LaneRule
from keylane.config.own_names import OWN_TOPICS
from keylane.config.topic_rules import matches_glob
from keylane.errors import ConfigInvalid
from keylane.keyrange.key_split import LaneCuts, PartitionSplit
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.topics.agreement import (
    LaneMeanings,
    compile_lane_names,
    describe_disagreement,
    node_rules,
)
from keylane.proxy.topics.view import View
from keylane.wire.batch import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD

CODECS: Final = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}
"""What a rule may say of compression, as batches say it."""
VIEW_NAMESPACE: Final = uuid.UUID("6b65796c-616e-4e00-8000-6c616e657300")
"""Lane names get ids of their own: clients key their caches by id. Any fixed value does."""


NAMES_JUDGED_MAX: Final = 10_000
RENAMED_VIEWS_MAX: Final = 4_096
"""Lane names in use, of all topics; a client may choose any of 1024 for each topic."""
"""Names that other nodes' rules were asked for; clients may name what is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalTopic:
    """What is known of a topic of the cluster."""

    name: str
    topic_id: uuid.UUID
    partition_count: int


class TopicRegistry:
    """Names and ids of all topics met, and the views on them.

    A partition count is pinned while there are lanes of the topic, under whatever name: lane
    indexes depend on it, so a count that grew must not move them under running members (see
    `grown`). A name that does not mean the same to all nodes is refused by all, also by those to
    which it is plain (see `update_nodes`).
    Invariants: every known id is that of a known topic; views are stable objects per name, for as
    long as they are among the last RENAMED_VIEWS_MAX that were used of names that clients choose.
    """

    def __init__(
        self,
        rules: tuple[LaneRule, ...],
        *,
        lane_name_pattern: str | None,
        plans: Mapping[str, LaneCuts] = MappingProxyType({}),
    ) -> None:
        """plans: cuts of all rules that name a plan, by the rule's topic."""
        self._rules, self._plans = rules, plans
        self._pattern = compile_lane_names(lane_name_pattern) if lane_name_pattern else None
        self._topics: dict[str, PhysicalTopic] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._views: dict[str, View] = {}
        self._views_by_id: dict[uuid.UUID, View] = {}
        self._renamed: OrderedDict[str, None] = OrderedDict()
        """Names of views that clients have chosen, in the order of their last use."""
        self.grown: dict[str, int] = {}
        self.own_topic_ids: set[bytes] = set()
        """Of keylane's own topics."""
        self._own = LaneMeanings(node_rules(rules, plans), lane_name_pattern or "")
        self._number, self._others = 0, dict[int, LaneMeanings]()
        self._judged: dict[str, str | None] = {}
        self._published_pins: dict[str, int] = {}

    @property
    def topics(self) -> dict[str, PhysicalTopic]:
        """All known topics by name; not to be changed."""
        return self._topics

    @property
    def views(self) -> dict[str, View]:
        """All views in use by name; not to be changed."""
        return self._views

    def update_nodes(self, number: int, others: Mapping[int, LaneMeanings]) -> None:
        """Take note of other nodes' rules, by node number; this node's number is `number`.

        Views on names that nodes do not agree on are dropped; once they agree, they are made anew.
        """
        differing = {other: meanings for other, meanings in others.items() if meanings != self._own}
        self._number, self._others = number, differing
        self._judged.clear()
        for name in [name for name in self._views if self._disagreement(name) is not None]:
            self._drop_view(self._views[name])

    def pins(self) -> dict[str, int]:
        """Topics with more partitions than their lanes read: this many, by topic id."""
        grown = (self._topics[name] for name in self.grown if name in self._topics)
        return {str(topic.topic_id): topic.partition_count for topic in grown}

    def update_pins(self, pins: Mapping[str, int]) -> None:
        """Keep to the partitions that other nodes keep to; views made with more are dropped.

        Else a node that starts after a topic has grown would show other lanes than the rest.
        """
        self._published_pins = dict(pins)
        for topic in list(self._topics.values()):
            self._keep_published(topic)

    def rule_of(self, name: str) -> tuple[str, int] | None:
        """(physical topic, lanes) where `name` stands for lanes, by the rules alone.

        By those of other nodes, too: it must not pass for plain here, and is refused.
        """
        found = self._own_rule(name)
        if found is None and self._others:
            return self._foreign_rule(name)
        return found

    def _own_rule(self, name: str) -> tuple[str, int] | None:
        # A lane name first: `shop-a.lanes-8` must not fall under a glob `shop-*`.
        match = self._pattern.fullmatch(name) if self._pattern else None
        if match is not None and not match["topic"].startswith("__"):
            lanes = int(match["lanes"])
            if lanes <= LANES_MAX:
                return match["topic"], lanes
        for rule in self._rules:
            if rule.matches(name):
                lanes = self._plans[name].lane_count if rule.lanes is None else rule.lanes
                return name, lanes
        return None

    def fingerprint_of(self, name: str) -> bytes:
        """Which cuts the lanes of `name` have, by the rules alone; none for equal ranges."""
        cuts = self._plans.get(name)
        return b"" if cuts is None else cuts.fingerprint

    def is_refused(self, name: str) -> bool:
        """Whether a name is not served: by its plan, or since nodes do not agree on it."""
        return self._refusal(name) is not None

    def refusals_of(self, topic: str) -> list[str]:
        """Why names of this known topic are not served: itself, and those that have a plan."""
        names = [topic, *(name for name in self._plans if self.physical_name(name) == topic)]
        reasons = (self._refusal(name) for name in dict.fromkeys(names))
        return [reason for reason in reasons if reason is not None]

    def disputes(self) -> dict[str, str]:
        """Known topics on whose own name nodes do not agree, and why."""
        if not self._others:
            return {}
        found = {name: self._disagreement(name) for name in self._topics}
        return {name: reason for name, reason in found.items() if reason is not None}

    @property
    def dissenters(self) -> tuple[int, ...]:
        """Nodes whose lane rules differ from those of this one, ascending."""
        return tuple(sorted(self._others))

    def refuse_left_out(self, name: str) -> None:
        """Of a name that groups have offsets of lanes on.

        Raises: ConfigInvalid, when a glob would be of it, were it not named as Streams names its
        own topics: without a word its lanes would be partitions from now on.
        """
        globs = (rule for rule in self._rules if matches_glob(name, rule.topic))
        rule = next(globs, None)
        if rule is not None and self._own_rule(name) is None:
            raise ConfigInvalid(
                f"lanes: topic {name} has groups with offsets of lanes, and the glob {rule.topic} "
                "leaves it out, since topics of Kafka Streams have such names. Add a rule with its "
                "own name and the same lanes, or stop the groups and start once with "
                "accept_layout naming the topic"
            )

    def physical_name(self, name: str) -> str:
        """The broker's name of what a client calls `name`."""
        found = self.rule_of(name)
        return found[0] if found else name

    def learn(self, name: str, topic_id: uuid.UUID, partition_count: int) -> None:
        """Take note of a topic as a broker tells it.

        Raises:
            ConfigInvalid: a real topic has a lane name; its data would be hidden by lanes.
        """
        found = self._own_rule(name)
        if found is not None and found[0] != name:
            raise ConfigInvalid(
                f"lane_name_pattern: topic {name} exists, its name means lanes of {found[0]}"
            )
        known = self._topics.get(name)
        if known is not None and known.topic_id == topic_id:
            # Kafka takes no partition away: a smaller count is an old answer of another broker.
            if partition_count <= known.partition_count:
                return
            if self._is_pinned(name):
                self.grown[name] = partition_count
                return
        self.forget(name)
        self.grown.pop(name, None)
        self._topics[name] = PhysicalTopic(
            name=name, topic_id=topic_id, partition_count=partition_count
        )
        self._names[topic_id] = name
        if name in OWN_TOPICS:
            self.own_topic_ids.add(topic_id.bytes)
        self._keep_published(self._topics[name])

    def pin_partitions(self, name: str, partition_count: int) -> None:
        """Keep to the partition count that groups' commits stand on (see `grown`)."""
        topic = self._topics[name]
        if partition_count < topic.partition_count:
            self._forget_views(name)
            self.grown[name] = topic.partition_count
            self._topics[name] = replace(topic, partition_count=partition_count)

    def forget(self, name: str) -> None:
        """A topic is gone."""
        self._forget_views(name)
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._names.pop(topic.topic_id, None)
            self.own_topic_ids.discard(topic.topic_id.bytes)

    def view(self, name: str) -> View | None:
        """The lanes that `name` stands for; None for plain topics and unknown ones.

        Raises:
            ConfigInvalid: a plan that does not fit the topic; nobody may take it for plain.
        """
        view = self._views.get(name)
        if view is None:
            return self._make_view(name)
        if view.is_renamed:
            self._renamed.move_to_end(name)
        return view

    def view_by_id(self, topic_id: uuid.UUID) -> View | None:
        """As `view`, by the id that the client was told."""
        view = self._views_by_id.get(topic_id)
        if view is None:
            return self._make_view(self._names[topic_id]) if topic_id in self._names else None
        if view.is_renamed:
            self._renamed.move_to_end(view.name)
        return view

    def renamed_of_id(self, topic_id: uuid.UUID) -> View | None:
        """The lanes that the id of a lane name stands for; None for ids of brokers."""
        view = self._views_by_id.get(topic_id)
        return view if view is not None and view.is_renamed else None

    def is_configured(self, split: PartitionSplit) -> bool:
        """Whether a partition (topic id, index) has these lanes under its topic's own name."""
        view = self._views_by_id.get(split.topic_id)
        if view is None or view.is_renamed or split.partition >= view.layout.partition_count:
            return False
        return view.key_split(split.partition) == split.key_split

    def is_plain_id(self, topic_id: uuid.UUID) -> bool:
        """Whether the id is a known topic's without lanes."""
        if topic_id in self._views_by_id:
            return False  # asked twice per poll of lanes: the rules need not be gone through
        name = self._names.get(topic_id)
        return name is not None and self.rule_of(name) is None

    def count_of(self, name: str) -> int:
        """Partitions that a topic has at the brokers, also those without lanes; 0: unknown."""
        topic = self._topics.get(name)
        return self.grown.get(name, topic.partition_count) if topic is not None else 0

    def name_of_id(self, topic_id: uuid.UUID) -> str | None:
        """The broker's name of a topic id."""
        return self._names.get(topic_id)

    def id_of_name(self, name: str) -> uuid.UUID | None:
        """The broker's id of a topic name."""
        topic = self._topics.get(name)
        return topic.topic_id if topic is not None else None

    def lane_topics(self) -> list[str]:
        """Known topics that are seen as lanes under their own name."""
        return [name for name in self._topics if self.rule_of(name) is not None]

    def _keep_published(self, topic: PhysicalTopic) -> None:
        count = self._published_pins.get(str(topic.topic_id), 0)
        if 0 < count < topic.partition_count:
            self.pin_partitions(topic.name, count)

    def _is_pinned(self, name: str) -> bool:
        has_views = any(view.topic == name for view in self._views.values())
        return has_views or name in self.grown or self._own_rule(name) is not None

    def _make_view(self, name: str) -> View | None:
        found = self.rule_of(name)
        topic = self._topics.get(found[0]) if found else None
        if found is None or topic is None or topic.partition_count < 1:
            return None
        refusal = self._refusal(name)
        if refusal is not None:
            raise ConfigInvalid(refusal)
        view_id = topic.topic_id
        if found[0] != name:
            view_id = uuid.uuid5(VIEW_NAMESPACE, f"{topic.topic_id}:{name}")
        view = View(
            name=name,
            topic=topic.name,
            view_id=view_id,
            topic_id=topic.topic_id,
            lanes=LaneLayout(topic.partition_count, found[1], self._plans.get(name)),
            reserve=self._reserve(topic.name),
            codec=self._codec(topic.name),
        )
        self._views[name] = self._views_by_id[view_id] = view
        if view.is_renamed:
            self._renamed[name] = None
            if len(self._renamed) > RENAMED_VIEWS_MAX:
                # Who still means it asks for it anew, as for a topic of which the id has changed.
                self._drop_view(self._views[next(iter(self._renamed))])
        return view

    def _foreign_rule(self, name: str) -> tuple[str, int] | None:
        meanings = (self._others[number].of(name) for number in sorted(self._others))
        return next(((meaning.topic, meaning.lanes) for meaning in meanings if meaning), None)

    def _disagreement(self, name: str) -> str | None:
        if not self._others:
            return None
        if name not in self._judged:
            if len(self._judged) >= NAMES_JUDGED_MAX:
                self._judged.clear()
            self._judged[name] = describe_disagreement(name, self._number, self._own, self._others)
        return self._judged[name]

    def _refusal(self, name: str) -> str | None:
        disagreement = self._disagreement(name)
        if disagreement is not None:
            return disagreement
        cuts = self._plans.get(name)
        topic = None if cuts is None else self._topics.get(self.physical_name(name))
        if cuts is None or topic is None or topic.partition_count == len(cuts.splits):
            return None
        return (
            f"lanes: the plan of {name} is for {len(cuts.splits)} partitions, topic "
            f"{topic.name} has {topic.partition_count}"
        )

    def _reserve(self, topic: str) -> bool:
        return next((r.reserve_message_value for r in self._rules if r.matches(topic)), True)

    def _codec(self, topic: str) -> int:
        return next((CODECS[r.compression] for r in self._rules if r.matches(topic)), CODEC_NONE)

    def _forget_views(self, topic: str) -> None:
        for view in [view for view in self._views.values() if view.topic == topic]:
            self._drop_view(view)

    def _drop_view(self, view: View) -> None:
        del self._views[view.name], self._views_by_id[view.view_id]
        self._renamed.pop(view.name, None)
