"""Topics that a rule stands for: a name, or a glob.

Source: the names of Kafka Streams' own topics are those of StreamsResetter's
`matchesInternalTopicFormat`.

Kafka Streams makes topics for its state with as many partitions as its tasks need, and stops when
it finds another number. A glob such as `*` would show it lanes there, so globs leave them out; a
rule that names such a topic applies to it.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Final

STREAMS_INTERNAL: Final = re.compile(
    r".*-(changelog|repartition|subscription-registration-topic|subscription-response-topic)"
    r"|.+-KTABLE-FK-JOIN-SUBSCRIPTION-(REGISTRATION|RESPONSE)-[0-9]+-topic",
    re.DOTALL,
)
GLOB_SIGNS: Final = frozenset("*?[")
LEGAL_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_rule_topic(text: str) -> str:
    """Return the topic of a rule, checked. Raises: ValueError."""
    if not LEGAL_TOPIC.fullmatch(re.sub(r"[*?\[\]!]", "x", text)):
        raise ValueError("not a legal topic name or glob")
    if text.startswith("__"):
        raise ValueError("internal topics have no lanes")
    return text


def falls_under(topic: str, rule_topic: str) -> bool:
    """Return whether a rule applies to the topic; to internal topics of brokers none does."""
    if topic == rule_topic:
        return not topic.startswith("__")
    return matches_glob(topic, rule_topic) and not is_left_out(topic)


def is_left_out(topic: str) -> bool:
    """Return whether globs leave the topic out: a broker's own, or one that Kafka Streams made."""
    return topic.startswith("__") or STREAMS_INTERNAL.fullmatch(topic) is not None


def matches_glob(topic: str, rule_topic: str) -> bool:
    """Return whether the name fits, whatever else the topic is."""
    return not GLOB_SIGNS.isdisjoint(rule_topic) and fnmatch.fnmatchcase(topic, rule_topic)
