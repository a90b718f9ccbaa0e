"""Members that are let in; `tests/property/test_node_plan.py` has the plan of partitions."""

from __future__ import annotations

import pytest

from keylane.proxy.nodes.owner_plan import admit, plan_owners
from keylane.proxy.topics.node_values import NO_GENERATION, Hello, NodeInfo, OwnershipClaim


def hello(
    number: int, port: int, *, since: int = NO_GENERATION, count: int = 50, lone: bool = False
) -> Hello:
    info = NodeInfo(number=number, bootstrap=("h", port), lone=lone)
    return Hello(node=info, ic_partition_count=count, since=since)


def test_all_numbers_differ() -> None:
    """All are let in, ascending by number."""
    admission = admit({"a": hello(2, 1), "b": hello(0, 2), "c": hello(1, 3)})

    assert list(admission.members.items()) == [(0, "b"), (1, "c"), (2, "a")]
    assert not admission.refused


@pytest.mark.parametrize("since", [NO_GENERATION, 8])
def test_the_node_that_was_there_first_keeps_its_number(since: int) -> None:
    """The other gets both addresses, whatever its member id."""
    admission = admit({"a": hello(1, 9999, since=since), "b": hello(1, 9000, since=7)})

    assert admission.members == {1: "b"}
    assert list(admission.refused) == ["a"]
    assert "h:9000" in admission.refused["a"] and "h:9999" in admission.refused["a"]
    assert admission.refused["a"].startswith("node: 1 ")


def test_of_two_new_ones_one_is_let_in() -> None:
    """By member id, so that each leader would decide the same."""
    admission = admit({"b": hello(1, 2), "a": hello(1, 1)})

    assert admission.members == {1: "a"} and list(admission.refused) == ["b"]


def test_another_count_of_partitions_is_refused() -> None:
    """A group's offsets would be looked for in two places."""
    admission = admit({"a": hello(0, 1, count=60), "b": hello(1, 2, since=3)})

    assert admission.members == {1: "b"}
    assert "sees 60" in admission.refused["a"] and "sees 50" in admission.refused["a"]


@pytest.mark.parametrize("is_lone", [True, False])
def test_no_node_is_let_in_beside_a_lone_one_that_is_there(is_lone: bool) -> None:
    """Numbered or not, though their numbers differ; both addresses are named."""
    there, new = hello(0, 9000, since=7, lone=True), hello(3, 9999, lone=is_lone)

    admission = admit({"a": new, "b": there}, leader="a")

    assert admission.members == {0: "b"}
    assert "h:9000 has no number" in admission.refused["a"] and "h:9999" in admission.refused["a"]


def test_a_lone_node_is_not_let_in_beside_a_numbered_one() -> None:
    """The numbered one was there first."""
    admission = admit({"a": hello(0, 1, lone=True), "b": hello(3, 9000, since=7)}, leader="a")

    assert admission.members == {3: "b"}
    assert "node at h:9000 is in front of this cluster already" in admission.refused["a"]


def test_of_new_lone_nodes_the_leader_is_let_in() -> None:
    """It joined first, and may hold the seat already; member ids do not matter."""
    admission = admit({"a": hello(0, 1, lone=True), "b": hello(0, 2, lone=True)}, leader="b")

    assert admission.members == {0: "b"} and list(admission.refused) == ["a"]


def test_no_hello_is_no_member() -> None:
    """No hello could be read."""
    assert not admit({}).members


def test_a_plan_needs_a_node() -> None:
    """Some partition would otherwise need an owner that no node can be."""
    with pytest.raises(ValueError, match="needs a node"):
        plan_owners({}, 5)


def test_the_later_generation_had_it() -> None:
    """Two claim partition 0; the one whose claim is older does not get it."""
    claims = {
        0: OwnershipClaim(generation_id=3, partitions=frozenset({0, 1})),
        1: OwnershipClaim(generation_id=4, partitions=frozenset({0, 2})),
    }

    assert plan_owners(claims, 4) == (1, 0, 1, 0)


def test_what_is_no_partition_is_not_claimed() -> None:
    """Of a node that saw more, or of another program."""
    assert plan_owners({3: OwnershipClaim(partitions=frozenset({-1, 0, 7}))}, 2) == (3, 3)
