"""proxy/control/gauges.py: before a node has joined, and without a lease."""

from __future__ import annotations

from keylane.proxy.control.gauges import NodeGauges
from keylane.proxy.topics.node_values import NO_NODE, Membership, NodeInfo

AGREED = Membership(
    generation_id=3,
    nodes=tuple(NodeInfo(number=number, bootstrap=("k", 1)) for number in (0, 4)),
    owners=(0, 4, 4, NO_NODE, 4),
)


def reported(gauges: NodeGauges) -> dict[str, float]:
    """Values by name, without what all begin with."""
    return {sample.name.removeprefix("keylane_"): sample.value for sample in gauges.samples()}


def test_what_a_node_serves() -> None:
    """All that was given to it, while its lease is good; names that nodes dispute."""
    gauges = NodeGauges(4, lambda: AGREED, lambda _partition: True, lambda: {"orders": "why"})

    assert reported(gauges) == {
        "node_members": 2,
        "node_partitions_owned": 3,
        "node_partitions_unserved": 1,
        "topics_disputed": 1,
    }


def test_a_node_without_a_lease_serves_nothing() -> None:
    """What was agreed is still known; only what is held counts."""
    gauges = NodeGauges(4, lambda: AGREED, lambda partition: partition == 2, dict)

    assert reported(gauges)["node_partitions_owned"] == 1
    assert reported(gauges)["node_members"] == 2


def test_before_it_has_joined() -> None:
    """Nothing is known."""
    gauges = NodeGauges(4, lambda: None, lambda _partition: True, dict)

    assert set(reported(gauges).values()) == {0}
