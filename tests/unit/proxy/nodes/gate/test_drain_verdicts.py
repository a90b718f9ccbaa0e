"""proxy/nodes/gate/verdicts.py: a node that drains is let in, and is given nothing."""

from __future__ import annotations

from types import SimpleNamespace

from keylane.proxy.nodes.gate.seals import NO_TRUST, Seals
from keylane.proxy.nodes.gate.verdicts import Received, decide
from keylane.proxy.topics.node_values import Hello, Membership, NodeInfo, OwnershipClaim

COUNT = 8
SEALS = Seals(lambda: "cluster", NO_TRUST.secrets)


def hello(number: int, *, is_draining: bool = False) -> Hello:
    """A node that has had half of the partitions."""
    info = NodeInfo(number=number, bootstrap=("h", 9000 + number), is_draining=is_draining)
    held = frozenset(range(number, COUNT, 2))
    claim = OwnershipClaim(generation_id=4, partitions=held)
    return Hello(node=info, ic_partition_count=COUNT, since=3, claim=claim)


def memberships(*hellos: Hello) -> list[Membership]:
    """The leader's word to each node."""
    joined = SimpleNamespace(generation_id=5, leader="m0")
    received = Received({f"m{each.node.number}": each for each in hellos}, {}, {})
    written = decide(joined, received, SEALS, withholds=False)
    found = []
    for each in hellos:
        number = each.node.number
        verdict = SEALS.read_verdict(
            written[f"m{number}"], generation_id=5, number=number, leader="m0",
            member_id=f"m{number}",
        )  # fmt: skip
        assert isinstance(verdict, Membership)
        found.append(verdict)
    return found


def test_the_others_get_all() -> None:
    """It is among the nodes, with its word, and all of them read the same."""
    first, second = memberships(hello(0), hello(1, is_draining=True))

    assert first == second
    assert [node.is_draining for node in first.nodes] == [False, True]
    assert first.owners == (0,) * COUNT


def test_groups_are_never_without_a_node() -> None:
    """If all drain, each keeps what it has."""
    (first, _) = memberships(hello(0, is_draining=True), hello(1, is_draining=True))

    assert first.owners == (0, 1) * (COUNT // 2)
