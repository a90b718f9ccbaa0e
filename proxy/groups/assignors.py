"""Groups whose lanes keylane deals out: by the name of their assignor, and by rules.

Source: docs/decisions/045; `partition.assignment.strategy` of Java's consumer, librdkafka and
franz-go, and the same names in aiokafka, kafka-python and Sarama; `RoundRobinAssigner` of KafkaJS.
"""

from __future__ import annotations

from typing import Final

from keylane.config.node import GroupRule

RANGE: Final = "range"
STICKY: Final = "sticky"
COOPERATIVE_STICKY: Final = "cooperative-sticky"
EAGER: Final = frozenset({RANGE, "roundrobin", STICKY})
"""Protocols whose members own nothing while they join. Members of others are believed."""
STOCK: Final = EAGER | {COOPERATIVE_STICKY, "RoundRobinAssigner"}
"""Assignors that come with a client library and assign partitions, nothing more."""
STREAMS: Final = "stream"
"""Assignor of Kafka Streams, which carries its tasks and their hosts in the assignment."""


def is_replaced(protocol_name: str | None, rule: GroupRule | None) -> bool:
    """Return whether keylane's plan of lanes takes the place of this assignor's.

    An assignor with another name was chosen for its plan, unless a rule says otherwise.
    """
    if protocol_name in {None, STREAMS}:
        return False
    if rule is None or rule.assignor is None:
        return protocol_name in STOCK
    return rule.assignor == "key-range"


def is_foreign(protocol_name: str | None, rule: GroupRule | None) -> bool:
    """Return whether an assignor is left to its clients only because its name is not known."""
    has_choice = rule is not None and rule.assignor is not None
    return not has_choice and protocol_name not in STOCK | {None, STREAMS}


def keeps_topics_together(protocol_name: str, rule: GroupRule | None) -> bool:
    """Return whether a member gets the same lanes of all topics that are cut alike.

    Range gives a member the same partitions of topics with equal counts, and clients join by that.
    """
    if rule is None or rule.co_partitioned is None:
        return protocol_name == RANGE
    return rule.co_partitioned
