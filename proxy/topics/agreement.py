"""The meaning of names by the lane rules of each node, and the names on which nodes do not agree.

The order of rules is that of docs/configuration.md.

A client asks one node for the meaning of a topic and fetches from another. If a name meant 4 lanes
to one node and 16 to the other, or lanes and a plain topic, members would read records twice or
never.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from keylane.bounded import BoundedDict
from keylane.config.node import LaneRule
from keylane.config.topic_rules import falls_under
from keylane.keyrange.key_split import LaneCuts
from keylane.keyrange.space import LANE_COUNT_MAX
from keylane.proxy.topics.node_values import NodeRule

NAMES_JUDGED_MAX: Final = 10_000
"""Names whose meaning is remembered; clients may name topics that do not exist."""
PLAIN: Final = "a plain topic"


class Meaning(NamedTuple):
    """The lanes that a name stands for; made whenever a client names a topic that has lanes."""

    topic: str
    """The broker's name of the topic."""
    lanes: int
    """Lanes per partition."""
    fingerprint: str = ""
    """Fingerprint of a plan's cuts, in hex; empty for equal ranges."""
    hash: str = "xxh64"
    """Name of the hash of keys."""

    def __str__(self) -> str:
        """Return the lanes in words, for a log line."""
        text = f"{self.lanes} lanes per partition of {self.topic}"
        if self.hash != "xxh64":
            text = f"{text} by {self.hash}"
        return f"{text} by the plan {self.fingerprint[:12]}" if self.fingerprint else text


@dataclass(frozen=True)
class LaneMeanings:
    """The lane rules of one node, asked by name. Equal rules give every name the same meaning."""

    rules: tuple[NodeRule, ...] = ()
    lane_name_pattern: str = ""
    """Empty: no name is a lane name."""

    @cached_property
    def _lane_names(self) -> re.Pattern[str] | None:
        # The pattern may come from another node, whose message was checked for its size only.
        pattern = self.lane_name_pattern
        is_pattern = pattern.count("{topic}") == pattern.count("{lanes}") == 1
        return compile_lane_names(pattern) if is_pattern else None

    @cached_property
    def _plans(self) -> dict[str, str]:
        return {rule.topic: rule.fingerprint for rule in self.rules if rule.fingerprint}

    def of(self, name: str) -> Meaning | None:
        """Return the lanes that a name stands for; None: a plain topic."""
        fingerprint = self._plans.get(name, "")
        # A lane name first: `shop-a.lanes-8` must not fall under a glob `shop-*`.
        match = self._lane_names.fullmatch(name) if self._lane_names else None
        if match is not None and not match["topic"].startswith("__"):
            lanes = int(match["lanes"])
            if lanes <= LANE_COUNT_MAX:
                return Meaning(match["topic"], lanes, fingerprint, self._hash_of(match["topic"]))
        rule = self.rule_of(name)
        return None if rule is None else Meaning(name, rule.lanes, fingerprint, rule.hash)

    def rule_of(self, topic: str) -> NodeRule | None:
        """Return the rule of a topic under its own name; None: it is plain."""
        return next((rule for rule in self.rules if falls_under(topic, rule.topic)), None)

    def _hash_of(self, topic: str) -> str:
        # All names of a topic share its hash: positions of a group do not say by which name.
        rule = self.rule_of(topic)
        return "xxh64" if rule is None else rule.hash


def compile_lane_names(pattern: str) -> re.Pattern[str]:
    """Return a `lane_name_pattern` as an expression with the groups `topic` and `lanes`."""
    return re.compile(
        re.escape(pattern)
        .replace(r"\{topic\}", r"(?P<topic>[a-zA-Z0-9._-]+)")
        .replace(r"\{lanes\}", r"(?P<lanes>[1-9][0-9]{0,3})")
    )


def node_rules(rules: Iterable[LaneRule], plans: Mapping[str, LaneCuts]) -> tuple[NodeRule, ...]:
    """Return the configured rules in the form that other nodes get.

    plans: cuts of all rules that name a plan, by the rule's topic.
    """
    reported = []
    for rule in rules:
        cuts = plans.get(rule.topic) if rule.plan is not None else None
        lanes = rule.lanes if cuts is None else cuts.lane_count
        assert lanes is not None, "a rule has lanes or a plan"
        fingerprint = "" if cuts is None else cuts.fingerprint.hex()
        reported.append(
            NodeRule(topic=rule.topic, lanes=lanes, fingerprint=fingerprint, hash=rule.hash)
        )
    return tuple(reported)


class Disputes:
    """Other nodes whose lane rules differ, and the names that mean something else to them."""

    def __init__(self, own: LaneMeanings) -> None:
        self._own = own
        self._number, self._others = 0, dict[int, LaneMeanings]()
        self._judged: BoundedDict[str, str | None] = BoundedDict(NAMES_JUDGED_MAX)

    def update(self, number: int, others: Mapping[int, LaneMeanings]) -> None:
        """Take note of other nodes' rules, by node number; this node's number is `number`."""
        differing = {other: meanings for other, meanings in others.items() if meanings != self._own}
        self._number, self._others = number, differing
        self._judged.clear()

    @property
    def dissenters(self) -> tuple[int, ...]:
        """Return the nodes whose lane rules differ from this one's, ascending by number."""
        return tuple(sorted(self._others))

    def meaning_of(self, name: str) -> Meaning | None:
        """Return what a name stands for at the first node that has lanes of that name."""
        if not self._others:
            return None
        meanings = (self._others[number].of(name) for number in self.dissenters)
        return next((meaning for meaning in meanings if meaning is not None), None)

    def among(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names on which nodes do not agree, and why."""
        if not self._others:
            return {}
        found = {name: self.reason_of(name) for name in names}
        return {name: reason for name, reason in found.items() if reason is not None}

    def reason_of(self, name: str) -> str | None:
        """Return why nodes do not agree on a name; None: it means the same to all."""
        if not self._others:
            return None
        if name not in self._judged:
            self._judged[name] = self._describe(name)
        return self._judged[name]

    def _describe(self, name: str) -> str | None:
        here = self._own.of(name)
        there: dict[Meaning | None, list[int]] = {}
        for other in self.dissenters:
            meaning = self._others[other].of(name)
            if meaning != here:
                there.setdefault(meaning, []).append(other)
        if not there:
            return None
        reported = [f"{here or PLAIN} at this node ({self._number})"]
        reported += [
            f"{meaning or PLAIN} at node{'s' if nodes[1:] else ''} {', '.join(map(str, nodes))}"
            for meaning, nodes in there.items()
        ]
        return f"lanes: nodes do not agree on {name}: {'; '.join(reported)}"
