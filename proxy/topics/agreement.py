"""What names mean by the lane rules of each node, and where nodes do not agree on it.

In:    lane rules of this node and of others.  Out: what a name stands for, and why not.
Source: the order of rules as in docs/configuration.md.

A client asks one node what a topic is and fetches from another. Would it be 4 lanes to one and
16 to the other, or lanes and a plain topic, then members would read what others read, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keylane.config.node import LANES_MAX, LaneRule
from keylane.config.topic_rules import falls_under
from keylane.keyrange.key_split import LaneCuts
from keylane.proxy.topics.node_values import NodeRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a name stands for that is seen as lanes."""

    topic: str
    """As the broker names it."""
    lanes: int
    """Per partition."""
    fingerprint: str = ""
    """Of a plan's cuts, in hex; empty for equal ranges."""

    def __str__(self) -> str:
        """For a log line."""
        text = f"{self.lanes} lanes per partition of {self.topic}"
        return f"{text} by the plan {self.fingerprint[:12]}" if self.fingerprint else text


class LaneMeanings:
    """The lane rules of one node, asked by name. Two with equal rules are equal."""

    def __init__(self, rules: Sequence[NodeRule] = (), pattern: str = "") -> None:
        """pattern: `lane_name_pattern`; empty: no name is a lane name."""
        self._rules, self._text = tuple(rules), pattern
        # Of another node: its configuration was checked there, its message only for size.
        is_pattern = pattern.count("{topic}") == pattern.count("{lanes}") == 1
        self._pattern = compile_lane_names(pattern) if is_pattern else None
        self._plans = {rule.topic: rule.fingerprint for rule in rules if rule.fingerprint}

    def __eq__(self, other: object) -> bool:
        """Whether every name means the same for having the same rules."""
        if not isinstance(other, LaneMeanings):
            return NotImplemented
        return (self._rules, self._text) == (other._rules, other._text)

    def __hash__(self) -> int:
        """As equal as its rules."""
        return hash((self._rules, self._text))

    def of(self, name: str) -> Meaning | None:
        """What a name stands for; None: for itself, a plain topic."""
        fingerprint = self._plans.get(name, "")
        # A lane name first: `shop-a.lanes-8` must not fall under a glob `shop-*`.
        match = self._pattern.fullmatch(name) if self._pattern else None
        if match is not None and not match["topic"].startswith("__"):
            lanes = int(match["lanes"])
            if lanes <= LANES_MAX:
                return Meaning(topic=match["topic"], lanes=lanes, fingerprint=fingerprint)
        for rule in self._rules:
            if falls_under(name, rule.topic):
                return Meaning(topic=name, lanes=rule.lanes, fingerprint=fingerprint)
        return None


def compile_lane_names(pattern: str) -> re.Pattern[str]:
    """A `lane_name_pattern` as an expression with the groups `topic` and `lanes`."""
    return re.compile(
        re.escape(pattern)
        .replace(r"\{topic\}", r"(?P<topic>[a-zA-Z0-9._-]+)")
        .replace(r"\{lanes\}", r"(?P<lanes>[1-9][0-9]{0,3})")
    )


def node_rules(rules: Iterable[LaneRule], plans: Mapping[str, LaneCuts]) -> tuple[NodeRule, ...]:
    """The configured rules as other nodes are told them.

    plans: cuts of all rules that name a plan, by the rule's topic.
    """
    reported = []
    for rule in rules:
        cuts = plans.get(rule.topic) if rule.plan is not None else None
        lanes = rule.lanes if cuts is None else cuts.lane_count
        assert lanes is not None, "a rule has lanes or a plan"
        fingerprint = "" if cuts is None else cuts.fingerprint.hex()
        reported.append(NodeRule(topic=rule.topic, lanes=lanes, fingerprint=fingerprint))
    return tuple(reported)


def describe_disagreement(
    name: str, number: int, own: LaneMeanings, others: Mapping[int, LaneMeanings]
) -> str | None:
    """Why nodes do not agree on a name, with their numbers and what it means to each.

    number, own: of this node. None: it means the same to all.
    """
    here = own.of(name)
    there: dict[Meaning | None, list[int]] = {}
    for other in sorted(others):
        meaning = others[other].of(name)
        if meaning != here:
            there.setdefault(meaning, []).append(other)
    if not there:
        return None
    reported = [f"{_log(here)} at this node ({number})"]
    reported += [
        f"{_log(meaning)} at node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
        for meaning, nodes in there.items()
    ]
    return f"lanes: nodes do not agree on {name}: {'; '.join(reported)}"


def _log(meaning: Meaning | None) -> str:
    return "a plain topic" if meaning is None else str(meaning)
