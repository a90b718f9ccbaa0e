"""Places of partitions: even among nodes, few moves when a node comes or goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.proxy.topics.node_values import Membership, NodeInfo
from keylane.proxy.topics.placement import ID_STRIDE, Placement, spread

topics = st.text("abcdefgh-._", min_size=1, max_size=20)
numbers = st.lists(st.integers(0, 999), min_size=1, max_size=8, unique=True).map(sorted)
counts = st.integers(1, 60)


@given(topic=topics, count=counts, nodes=numbers)
def test_every_node_has_its_share(topic: str, count: int, nodes: list[int]) -> None:
    """Even to one partition, whatever the topic; the order of the nodes does not matter."""
    placed = spread(topic, count, nodes)

    loads = [placed.count(number) for number in nodes]
    assert sum(loads) == count == len(placed) and max(loads) - min(loads) <= 1
    assert placed == spread(topic, count, nodes[::-1])


@given(topic=topics, count=counts, nodes=numbers, newcomer=st.integers(0, 999))
def test_few_partitions_move(topic: str, count: int, nodes: list[int], newcomer: int) -> None:
    """At most twice the newcomer's share and one per node, where a plain modulo moves nearly all.

    The same is moved back when it goes.
    """
    if newcomer in nodes:
        return
    before = spread(topic, count, nodes)
    after = spread(topic, count, sorted([*nodes, newcomer]))

    moved = sum(one != other for one, other in zip(before, after, strict=True))
    assert after.count(newcomer) <= moved <= 2 * after.count(newcomer) + len(nodes)


@given(nodes=numbers, brokers=st.lists(st.integers(0, ID_STRIDE - 1), min_size=1, unique=True))
def test_no_two_pairs_have_one_id(nodes: list[int], brokers: list[int]) -> None:
    """And each comes apart into what it was made of."""
    placement = Placement(nodes[0])
    address = "h", 1
    infos = [
        NodeInfo(number=n, bootstrap=address, brokers=dict.fromkeys(brokers, address))
        for n in nodes
    ]
    placement.update(Membership(generation_id=1, nodes=tuple(infos), owners=()))

    reported = [virtual for b in brokers for virtual, _ in placement.endpoints(b, address)]

    assert {placement.split_id(virtual) for virtual in reported} == {
        (number, broker) for number in nodes for broker in brokers
    }
    assert len(set(reported)) == len(nodes) * len(brokers)
