"""The topics to which each lane rule applies, as a start and `keylane check` show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from keylane.config.node import LaneRule


class Topic(Protocol):
    """A topic that brokers have (`topics.registry`)."""

    @property
    def partition_count(self) -> int:
        """Partitions of the topic."""


class Registry(Protocol):
    """Topics by name, and what lanes mean of them (`topics.registry`)."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Topics that brokers have."""

    def rule_of(self, name: str) -> tuple[str, int] | None:
        """Return (physical topic, lanes) where a name stands for lanes."""

    def refusals_of(self, topic: str) -> list[str]:
        """Return why names of a known topic are not served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedTopic:
    """A topic under a rule."""

    topic: str
    partitions: int
    lanes: int
    refusal: str | None
    """The reason why it is not served; None: it is."""

    def __str__(self) -> str:
        """Return `orders: 2 partitions x 16 lanes`."""
        noun = "partition" if self.partitions == 1 else "partitions"
        return f"{self.topic}: {self.partitions} {noun} x {self.lanes} lanes"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRule:
    """A rule of `lanes`, and the topics of which it is the first that fits."""

    rule: str
    topics: tuple[MatchedTopic, ...]


def match_rules(rules: Sequence[LaneRule], registry: Registry) -> list[MatchedRule]:
    """Return each rule with its topics, by name."""
    found: list[list[MatchedTopic]] = [[] for _ in rules]
    for name, topic in sorted(registry.topics.items()):
        number = next((place for place, rule in enumerate(rules) if rule.matches(name)), None)
        if number is None:
            continue
        meaning = registry.rule_of(name)
        refusals = registry.refusals_of(name)
        matched = MatchedTopic(
            topic=name,
            partitions=topic.partition_count,
            lanes=meaning[1] if meaning is not None else rules[number].lanes or 0,
            refusal=refusals[0] if refusals else None,
        )
        found[number].append(matched)
    return [
        MatchedRule(rule=rule.topic, topics=tuple(topics))
        for rule, topics in zip(rules, found, strict=True)
    ]
