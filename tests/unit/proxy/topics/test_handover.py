"""Producers that are forgotten when their partition comes back to this node."""

from __future__ import annotations

import uuid

from keylane.config.node import LaneRule
from keylane.producers.sequence import SequencedBatch, SequenceMap
from keylane.proxy.topics.node_values import Membership, NodeInfo
from keylane.proxy.topics.placement import Placement, forget_gained
from keylane.proxy.topics.registry import TopicRegistry
from keylane.wire.produce import Refusal

ORDERS, GONE = uuid.UUID(int=1), uuid.UUID(int=2)
PARTITIONS = 8


def membership(*numbers: int) -> Membership:
    nodes = tuple(
        NodeInfo(number=number, bootstrap=("h", 1), brokers={5: ("h", 2)}) for number in numbers
    )
    return Membership(generation_id=1, nodes=nodes, owners=())


def test_only_what_was_elsewhere_and_is_here_is_forgotten() -> None:
    """What is here all along stays, what goes away stays, and of topics that are gone nothing."""
    registry = TopicRegistry((LaneRule(topic="orders", lanes=4),), lane_name_pattern=None)
    registry.learn("orders", ORDERS, PARTITIONS)
    placement = Placement(1)
    sequences = SequenceMap(seed=1)
    for partition in range(PARTITIONS):
        for producer_id in (7, 8):
            sequences.assign(SequencedBatch(producer_id, 0, ORDERS, partition, partition, 0, 5))
    sequences.assign(SequencedBatch(7, 0, GONE, 0, 0, 0, 5))

    def receive(*numbers: int) -> int:
        before = placement.update(membership(*numbers))
        return forget_gained(sequences, registry, {(ORDERS, 0): (5, 9)}, before, placement)

    joined = receive(1, 2)
    here = {p for p in range(PARTITIONS) if placement.node_of_partition("orders", p, 8, 5) == 1}
    alone = receive(1)

    assert joined == 0 and alone == 2 * (PARTITIONS - len(here)) > 0
    assert sequences.places() == {(GONE, 0), *((ORDERS, partition) for partition in here)}
    sequences.check()


def test_a_producer_that_comes_back_is_asked_for_a_new_epoch() -> None:
    """An answer that its sequence is out of order would end librdkafka's producer."""
    sequences = SequenceMap(seed=1)
    sequences.assign(SequencedBatch(7, 0, ORDERS, 0, 3, 0, 5))

    assert sequences.forget(ORDERS, 0) == 1 and sequences.forget(ORDERS, 0) == 0

    refused = sequences.assign(SequencedBatch(7, 0, ORDERS, 0, 3, 40, 5))
    assert isinstance(refused, Refusal) and refused.error_code == 59
    sequences.check()
