"""Where clients are sent: virtual broker ids, addresses, places of partitions and groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from keylane.errors import ConfigInvalid
from keylane.offsets.records.journal import ic_partition
from keylane.proxy.topics.node_values import NO_NODE, Membership, NodeInfo
from keylane.proxy.topics.placement import Placement, spread

OWN = "here", 1


def info(number: int, *brokers: int) -> NodeInfo:
    addresses = {broker: (f"node{number}", 9000 + broker) for broker in brokers}
    return NodeInfo(number=number, bootstrap=(f"node{number}", 9000), brokers=addresses)


def among(number: int, *nodes: NodeInfo, owners: tuple[int, ...] = ()) -> Placement:
    placement = Placement(number)
    placement.update(Membership(generation_id=1, nodes=nodes, owners=owners))
    return placement


def test_the_lone_node_changes_nothing() -> None:
    """Ids of any size stay, a broker is itself at the own address, nothing is placed."""
    placement = Placement()

    assert placement.is_alone and placement.numbers == ()
    assert placement.own_id(7_000_001) == placement.real_id(7_000_001) == 7_000_001
    assert placement.split_id(3_000_001) == (None, 3_000_001)
    assert placement.endpoints(4, OWN) == [(4, OWN)]
    assert placement.coordinator("g", 4, OWN) == (4, OWN)
    assert placement.node_of_partition("t", 0, 3, 1) is None
    assert placement.virtual_id(None, 4) == 4


def test_virtual_ids_come_apart_again() -> None:
    """Node and broker; no broker (-1) stays none, ids of node 0 are the brokers' own."""
    placement = Placement(12)

    assert placement.own_id(34) == 12_000_034
    assert placement.split_id(12_000_034) == (12, 34)
    assert placement.real_id(12_000_034) == placement.real_id(34) == 34
    assert placement.virtual_id(0, 34) == 34
    assert placement.own_id(-1) == placement.real_id(-1) == -1
    assert Placement(999).own_id(999_999) < 2**31


def test_broker_ids_that_are_too_large_for_many_nodes() -> None:
    """A clear error instead of another node's broker."""
    with pytest.raises(ConfigInvalid, match=r"broker id 1000000 is too large .* use ids < 1000000"):
        Placement(1).own_id(1_000_000)


def test_a_broker_is_named_once_per_node_that_has_a_listener_for_it() -> None:
    """This node's own address is the one it has now, not the one it once published."""
    placement = among(2, info(1, 5, 6), info(2, 5), info(3, 5))

    assert placement.endpoints(5, OWN) == [
        (1_000_005, ("node1", 9005)),
        (2_000_005, OWN),
        (3_000_005, ("node3", 9005)),
    ]
    assert placement.endpoints(6, OWN) == [(1_000_006, ("node1", 9006)), (2_000_006, OWN)]


def test_before_the_first_membership_a_node_knows_itself_only() -> None:
    """Partitions are here, groups have no place."""
    placement = Placement(4)

    assert placement.numbers == (4,)
    assert placement.endpoints(1, OWN) == [(4_000_001, OWN)]
    assert placement.node_of_partition("t", 2, 3, 1) == 4
    assert placement.node_of_group("g") is None
    assert placement.coordinator("g", 1, OWN) is None


def test_a_group_is_where_its_ic_partition_is_owned() -> None:
    """The owner's address of the broker; none while no node, or a stranger, owns it."""
    partition = ic_partition("g", 3)
    owners = [2, 2, 2]
    nodes = info(1, 5), info(2, 5)

    owners[partition] = 1
    placement = among(1, *nodes, owners=tuple(owners))
    assert placement.node_of_group("g") == 1
    assert placement.coordinator("g", 5, OWN) == (1_000_005, OWN)

    there = among(2, *nodes, owners=tuple(owners))
    assert there.coordinator("g", 5, OWN) == (1_000_005, ("node1", 9005))
    assert there.coordinator("g", 6, OWN) is None

    for no_one in (NO_NODE, 9):
        owners[partition] = no_one
        assert among(1, *nodes, owners=tuple(owners)).node_of_group("g") is None


def test_a_partition_is_never_placed_where_its_leader_cannot_be_reached() -> None:
    """The same other node for all callers; here, when no node has reported the broker yet."""
    nodes = info(1, 5), info(2, 5, 6), info(3, 5, 6)
    places = [
        [among(own, *nodes).node_of_partition("t", p, 12, 6) for p in range(12)] for own in (1, 2)
    ]

    assert places[0] == places[1] and set(places[0]) == {2, 3}
    evenly = [among(1, *nodes).node_of_partition("t", p, 12, 5) for p in range(12)]
    assert all(place == even for place, even in zip(places[0], evenly, strict=True) if even != 1)
    assert among(3, *nodes).node_of_partition("t", 0, 12, 99) == 3


def test_what_was_placed_goes_by_the_newest_membership() -> None:
    """Nothing is kept of the one before."""
    placement = among(1, info(1, 5))
    assert {placement.node_of_partition("t", p, 8, 5) for p in range(8)} == {1}

    placement.update(Membership(generation_id=2, nodes=(info(1, 5), info(2, 5)), owners=()))

    assert {placement.node_of_partition("t", p, 8, 5) for p in range(8)} == {1, 2}


def test_places_of_topics_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is bounded, and what is asked again is placed as before."""
    monkeypatch.setattr("keylane.proxy.topics.placement.TOPICS_CACHED_MAX", 2)
    placement = among(1, info(1, 5), info(2, 5))

    first = [placement.node_of_partition(f"t{n}", 0, 1, 5) for n in range(20)]
    assert [placement.node_of_partition(f"t{n}", 0, 1, 5) for n in range(20)] == first


def test_places_do_not_change_between_versions() -> None:
    """Nodes of two versions, side by side in a rolling update, have to agree."""
    assert spread("orders", 12, (0, 1, 2)) == [0, 0, 1, 2, 1, 1, 2, 2, 0, 2, 0, 1]


def test_the_control_port_of_another_node() -> None:
    """None for this node, for one that is not known, and for one without a control port."""
    nodes = (replace(info(1), control="http://node1:9100"), replace(info(2), control="http://me"))
    placement = among(2, *nodes, info(3))

    assert placement.control_of(1) == "http://node1:9100"
    assert [placement.control_of(number) for number in (2, 3, 4, None)] == [None] * 4


def draining(number: int, *brokers: int) -> NodeInfo:
    return replace(info(number, *brokers), is_draining=True)


def test_no_client_is_sent_to_a_node_that_drains() -> None:
    """Neither by others nor by itself; its own control port is still known."""
    nodes = (info(0, 1), draining(1, 1), info(2, 1))
    for number in (0, 1, 2):
        placement = among(number, *nodes, owners=(0, 2))

        assert placement.numbers == (0, 2)
        assert {at // 1_000_000 for at, _ in placement.endpoints(1, OWN)} == {0, 2}
        assert {placement.node_of_partition("t", n, 8, 1) for n in range(8)} == {0, 2}
        assert {placement.node_of_partition("t", -n, 8, 1) for n in range(1, 20)} == {0, 2}
        assert placement.knows(1) and placement.has_others
        assert placement.is_led_away == (number == 1)
    drained = among(1, *nodes, owners=(0, 2))
    assert drained.home == 0 and drained.home_id(1) == 1
    assert drained.home_place(1, OWN) == (1, ("node0", 9001))
    assert drained.home_place(2, OWN) == (1_000_002, OWN)  # node 0 has no listener for it yet
    assert drained.own_id(1) == 1_000_001


def test_where_all_drain_all_serve() -> None:
    """Two drains at the same moment leave no group and no client without a node."""
    placement = among(1, draining(0, 1), draining(1, 1), owners=(0, 1))

    assert placement.numbers == (0, 1) and not placement.is_led_away
