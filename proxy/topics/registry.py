"""Topics of the cluster, their pinned partition counts, and the views on those that have lanes."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from keylane.config.node import LaneRule
from keylane.config.own_names import OWN_TOPICS
from keylane.config.topic_rules import matches_glob
from keylane.errors import ConfigInvalid
from keylane.keyrange.hash import XXH64, HashName, KeyHash, odd_part
from keylane.keyrange.key_split import LaneCuts, PartitionSplit
from keylane.keyrange.lane import HASH_FINGERPRINTS, LaneLayout, hash_of_lanes
from keylane.proxy.topics.agreement import Disputes, LaneMeanings, node_rules
from keylane.proxy.topics.view import View
from keylane.wire.batch import CODEC_LZ4, CODEC_NONE, CODEC_ZSTD

CODECS: Final = {"none": CODEC_NONE, "lz4": CODEC_LZ4, "zstd": CODEC_ZSTD}
"""Codec ids of batches, by their word in a rule."""
VIEW_NAMESPACE: Final = uuid.UUID("6b65796c-616e-4e00-8000-6c616e657300")
"""Lane names get ids of their own: clients key their caches by id. Any fixed value does."""

RENAMED_VIEWS_MAX: Final = 4_096
"""Lane names in use, of all topics; a client may choose one of 1024 for each topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalTopic:
    """A topic of the cluster."""

    name: str
    topic_id: uuid.UUID
    partition_count: int


class ViewTable:
    """Views of lanes, each one stable object per name.

    Invariant: views under names that clients choose are the last RENAMED_VIEWS_MAX in use.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, View] = {}
        """Views by name; not to be changed."""
        self._by_id: dict[uuid.UUID, View] = {}
        self._renamed: OrderedDict[str, None] = OrderedDict()
        """Names that clients have chosen, in the order of their last use."""

    def use(self, name: str) -> View | None:
        """Return the view of a name, which is in use."""
        view = self.by_name.get(name)
        if view is not None and view.is_renamed:
            self._renamed.move_to_end(name)
        return view

    def use_id(self, view_id: uuid.UUID) -> View | None:
        """Return the view of an id that clients know, which is in use."""
        view = self._by_id.get(view_id)
        if view is not None and view.is_renamed:
            self._renamed.move_to_end(view.name)
        return view

    def of_id(self, view_id: uuid.UUID) -> View | None:
        """Return the view of an id; it does not count as used."""
        return self._by_id.get(view_id)

    def add(self, view: View) -> None:
        """Keep a view; the one whose name was not used for longest goes when there are too many."""
        self.by_name[view.name] = self._by_id[view.view_id] = view
        if view.is_renamed:
            self._renamed[view.name] = None
            if len(self._renamed) > RENAMED_VIEWS_MAX:
                # A client that still uses the name asks again, as for a topic with a new id.
                self.drop(next(iter(self._renamed)))

    def has_topic(self, topic: str) -> bool:
        """Return whether there is a view of a topic under any name."""
        return any(view.topic == topic for view in self.by_name.values())

    def drop_topic(self, topic: str) -> None:
        """Drop the views of a topic under all names."""
        for view in [view for view in self.by_name.values() if view.topic == topic]:
            self.drop(view.name)

    def drop(self, name: str) -> None:
        """Drop the view of a name."""
        view = self.by_name.pop(name)
        del self._by_id[view.view_id]
        self._renamed.pop(name, None)


class TopicRegistry:
    """Names and ids of all topics that a broker has named, and the views on them.

    A partition count is pinned while there are lanes of the topic, under whatever name: lane
    indexes depend on it, so a count that grew must not move them under running members (see
    `grown`). A name that does not mean the same to all nodes is refused by all, also by those to
    which it is plain (see `update_nodes`).
    Invariant: every known id is that of a known topic.
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
        self.topics: dict[str, PhysicalTopic] = {}
        """Known topics by name; not to be changed."""
        self._names: dict[uuid.UUID, str] = {}
        self._views = ViewTable()
        self.views = self._views.by_name
        """Views in use by name; not to be changed."""
        self.grown: dict[str, int] = {}
        self._lane_topics: tuple[str, ...] | None = None
        self.own_topic_ids: set[bytes] = set()
        """Topics of keylane itself."""
        self._own = LaneMeanings(node_rules(rules, plans), lane_name_pattern or "")
        self.disputes = Disputes(self._own)
        self._published_pins: dict[str, int] = {}

    def update_nodes(self, number: int, others: Mapping[int, LaneMeanings]) -> None:
        """Note the rules of other nodes, by node number; this node's number is `number`.

        Views on names that nodes do not agree on are dropped; once they agree, they are made anew.
        """
        self.disputes.update(number, others)
        self._lane_topics = None
        for name in self.disputes.among(self.views):
            self._views.drop(name)

    def pins(self) -> dict[str, int]:
        """Return how many partitions lanes keep to, by the id of a topic that has more."""
        grown = (self.topics[name] for name in self.grown if name in self.topics)
        return {str(topic.topic_id): topic.partition_count for topic in grown}

    def update_pins(self, pins: Mapping[str, int]) -> None:
        """Keep to the partitions that other nodes keep to; views made with more are dropped.

        Otherwise a node that starts after a topic has grown would show other lanes than the rest.
        """
        self._published_pins = dict(pins)
        for topic in list(self.topics.values()):
            self._keep_published(topic)

    def rule_of(self, name: str) -> tuple[str, int] | None:
        """Return (physical topic, lanes) where `name` stands for lanes, by the rules alone.

        Rules of other nodes count as well: such a name must not pass for plain, and is refused.
        """
        meaning = self._own.of(name) or self.disputes.meaning_of(name)
        return (meaning.topic, meaning.lanes) if meaning is not None else None

    def fingerprint_of(self, name: str) -> bytes:
        """Return the fingerprint of the lanes of `name` by the rules, see `LaneLayout`."""
        cuts = self._plans.get(name)
        return HASH_FINGERPRINTS[self._hash_of(name)] if cuts is None else cuts.fingerprint

    def key_hash_of(self, topic: str) -> KeyHash:
        """Return the key hash of a topic that brokers have, under all names of it."""
        rule, known = self._own.rule_of(topic), self.topics.get(topic)
        if rule is None or known is None or rule.hash == "xxh64":
            return XXH64
        return hash_of_lanes("murmur2", known.partition_count, rule.lanes)

    def is_refused(self, name: str) -> bool:
        """Return whether a name is not served: by its plan, or since nodes do not agree on it."""
        return self._refusal(name) is not None

    def refusals_of(self, topic: str) -> list[str]:
        """Return why names of this known topic are not served: its own, and those with a plan."""
        names = [topic, *(name for name in self._plans if self.physical_name(name) == topic)]
        reasons = (self._refusal(name) for name in dict.fromkeys(names))
        return [reason for reason in reasons if reason is not None]

    def refuse_left_out(self, name: str) -> None:
        """Refuse a name with offsets of lanes that a glob leaves out as a topic of Kafka Streams.

        Raises: ConfigInvalid; else its lanes would silently become partitions.
        """
        globs = (rule for rule in self._rules if matches_glob(name, rule.topic))
        rule = next(globs, None)
        if rule is not None and self._own.of(name) is None:
            raise ConfigInvalid(
                f"lanes: topic {name} has groups with offsets of lanes, and the glob {rule.topic} "
                "leaves it out, since topics of Kafka Streams have such names. Add a rule with its "
                "own name and the same lanes, or stop the groups and start once with "
                "accept_layout naming the topic"
            )

    def physical_name(self, name: str) -> str:
        """Return the broker's name of a client's topic name."""
        found = self.rule_of(name)
        return found[0] if found else name

    def learn(self, name: str, topic_id: uuid.UUID, partition_count: int) -> None:
        """Note a topic as a broker describes it.

        Raises: ConfigInvalid (a real topic has a lane name, and lanes would hide its data).
        """
        found = self._own.of(name)
        if found is not None and found.topic != name:
            raise ConfigInvalid(
                f"lane_name_pattern: topic {name} exists, its name means lanes of {found.topic}"
            )
        known = self.topics.get(name)
        if known is not None and known.topic_id == topic_id:
            # Kafka removes no partition: a smaller count is an old answer of a lagging broker.
            if partition_count <= known.partition_count:
                return
            if self._is_pinned(name):
                self.grown[name] = partition_count
                return
        # A topic that was made anew: its old id must not lead clients to the new topic's data.
        self.forget(name)
        self.grown.pop(name, None)
        self.topics[name] = PhysicalTopic(
            name=name, topic_id=topic_id, partition_count=partition_count
        )
        self._names[topic_id] = name
        self._lane_topics = None
        if name in OWN_TOPICS:
            self.own_topic_ids.add(topic_id.bytes)
        self._keep_published(self.topics[name])

    def pin_partitions(self, name: str, partition_count: int) -> None:
        """Keep to the partition count that groups' commits stand on (see `grown`)."""
        topic = self.topics[name]
        if partition_count < topic.partition_count:
            self._views.drop_topic(name)
            self.grown[name] = topic.partition_count
            self.topics[name] = replace(topic, partition_count=partition_count)

    def forget(self, name: str) -> None:
        """Forget a topic that is gone."""
        self._views.drop_topic(name)
        topic = self.topics.pop(name, None)
        if topic is not None:
            self._lane_topics = None
            self._names.pop(topic.topic_id, None)
            self.own_topic_ids.discard(topic.topic_id.bytes)

    def view(self, name: str) -> View | None:
        """Return the lanes that `name` stands for; None for plain topics and unknown ones.

        Raises: ConfigInvalid (a name that is refused, which must not pass for plain).
        """
        view = self._views.use(name)
        return view if view is not None else self._make_view(name)

    def view_by_id(self, topic_id: uuid.UUID) -> View | None:
        """Return the same view by the id that the client knows."""
        view = self._views.use_id(topic_id)
        if view is None and topic_id in self._names:
            return self._make_view(self._names[topic_id])
        return view

    def renamed_of_id(self, topic_id: uuid.UUID) -> View | None:
        """Return the lanes that the id of a lane name stands for; None for ids of brokers."""
        view = self._views.of_id(topic_id)
        return view if view is not None and view.is_renamed else None

    def is_configured(self, split: PartitionSplit) -> bool:
        """Return whether the partition has these lanes under its topic's own name."""
        view = self._views.of_id(split.topic_id)
        if view is None or view.is_renamed or split.partition >= view.layout.partition_count:
            return False
        return view.key_split(split.partition) == split.key_split

    def is_plain_id(self, topic_id: uuid.UUID) -> bool:
        """Return whether the id is a known topic's without lanes."""
        if self._views.of_id(topic_id) is not None:
            return False  # asked twice per poll of lanes: the rules need not be gone through
        name = self._names.get(topic_id)
        return name is not None and self.rule_of(name) is None

    def count_of(self, name: str) -> int:
        """Return the partition count at the brokers, with partitions without lanes; 0: unknown."""
        topic = self.topics.get(name)
        return self.grown.get(name, topic.partition_count) if topic is not None else 0

    def name_of_id(self, topic_id: uuid.UUID) -> str | None:
        """Return the broker's name of a topic id."""
        return self._names.get(topic_id)

    def id_of_name(self, name: str) -> uuid.UUID | None:
        """Return the broker's id of a topic name."""
        topic = self.topics.get(name)
        return topic.topic_id if topic is not None else None

    def lane_topics(self) -> tuple[str, ...]:
        """Return known topics that are seen as lanes under their own name."""
        if self._lane_topics is None:
            found = (name for name in self.topics if self.rule_of(name) is not None)
            self._lane_topics = tuple(found)
        return self._lane_topics

    def _keep_published(self, topic: PhysicalTopic) -> None:
        count = self._published_pins.get(str(topic.topic_id), 0)
        if 0 < count < topic.partition_count:
            self.pin_partitions(topic.name, count)

    def _is_pinned(self, name: str) -> bool:
        has_rule = self._own.of(name) is not None
        return has_rule or name in self.grown or self._views.has_topic(name)

    def _make_view(self, name: str) -> View | None:
        found = self.rule_of(name)
        topic = self.topics.get(found[0]) if found else None
        if found is None or topic is None or topic.partition_count < 1:
            return None
        refusal = self._refusal(name)
        if refusal is not None:
            raise ConfigInvalid(refusal)
        view_id = topic.topic_id
        if found[0] != name:
            view_id = uuid.uuid5(VIEW_NAMESPACE, f"{topic.topic_id}:{name}")
        rule = next((rule for rule in self._rules if rule.matches(topic.name)), None)
        view = View(
            name=name,
            topic=topic.name,
            view_id=view_id,
            topic_id=topic.topic_id,
            lanes=LaneLayout(
                topic.partition_count, found[1], self._plans.get(name), self._hash_of(name)
            ),
            reserve=rule is None or rule.reserve_message_value,
            codec=CODEC_NONE if rule is None else CODECS[rule.compression],
        )
        self._views.add(view)
        return view

    def _refusal(self, name: str) -> str | None:
        disagreement = self.disputes.reason_of(name)
        if disagreement is not None:
            return disagreement
        other_lanes = self._other_lanes(name)
        if other_lanes is not None:
            return other_lanes
        cuts = self._plans.get(name)
        topic = None if cuts is None else self.topics.get(self.physical_name(name))
        if cuts is None or topic is None or topic.partition_count == len(cuts.splits):
            return None
        return (
            f"lanes: the plan of {name} is for {len(cuts.splits)} partitions, topic "
            f"{topic.name} has {topic.partition_count}"
        )

    def _hash_of(self, name: str) -> HashName:
        meaning = self._own.of(name)
        return "xxh64" if meaning is None or meaning.hash == "xxh64" else "murmur2"

    def _other_lanes(self, name: str) -> str | None:
        """Return why a lane name cannot stand beside its topic's own lanes by murmur2."""
        meaning = self._own.of(name)
        if meaning is None or meaning.hash == "xxh64" or meaning.topic == name:
            return None
        rule = self._own.rule_of(meaning.topic)
        assert rule is not None, "the hash is that of a rule"
        if odd_part(rule.lanes) == odd_part(meaning.lanes):
            return None
        return (
            f"lanes: {name} needs {rule.lanes} lanes or that times or over a power of two, since "
            f"topic {meaning.topic} has {rule.lanes} lanes by {meaning.hash}"
        )
