"""proxy/topics/node_roll.py: nodes that come and go are events, and shown for an hour."""

from __future__ import annotations

from keylane.proxy.runtime.event_log import EventLog
from keylane.proxy.topics.node_roll import AWAY_KEPT_MS, NodeRoll
from keylane.proxy.topics.node_values import NO_NODE, Membership, NodeInfo


def membership(*owners: int, nodes: tuple[int, ...]) -> Membership:
    known = tuple(NodeInfo(number=number, bootstrap=("host", number)) for number in nodes)
    return Membership(generation_id=1, nodes=known, owners=owners)


def test_nodes_come_and_go() -> None:
    """The first agreement is no event; a node that went is away until it is back."""
    now_ms = [1_000]
    log = EventLog(lambda: now_ms[0])
    roll = NodeRoll(lambda: now_ms[0], log.note)

    roll.update(membership(1, 1, 1, nodes=(1,)))
    roll.update(membership(1, 2, 1, nodes=(1, 2)))
    roll.update(membership(1, 1, 1, nodes=(1,)))
    away = roll.away()
    roll.update(membership(2, 1, NO_NODE, nodes=(1, 2)))

    assert [(each.info.number, each.since_ms) for each in away] == [(2, 1_000)]
    assert roll.away() == []
    assert [event.text for event in log.after(0, limit=9)] == [
        "Node 2 at host:2 joined; it serves 1 of 3 partitions of the journal.",
        "Node 2 at host:2 went; of its partitions of the journal node 1 took over 1.",
        "Node 2 at host:2 is back; it serves 1 of 3 partitions of the journal.",
        "No node serves 1 of 3 partitions of the journal; groups there wait.",
    ]


def test_a_node_that_was_stopped_for_good_is_forgotten() -> None:
    """It looks like one that died, for an hour."""
    now_ms = [1_000]
    roll = NodeRoll(lambda: now_ms[0], EventLog(lambda: 0).note)
    roll.update(membership(1, nodes=(1, 2)))
    roll.update(membership(1, nodes=(1,)))

    now_ms[0] += AWAY_KEPT_MS
    assert len(roll.away()) == 1
    now_ms[0] += 1
    assert roll.away() == []
