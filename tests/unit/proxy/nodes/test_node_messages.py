"""Messages between nodes, as bytes: sense is read, nonsense is refused."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.assignor.protocol import (
    Subscription,
    read_assignment,
    write_assignment,
    write_subscription,
)
from keylane.errors import NodeInvalid
from keylane.offsets.records.journal import TOPIC_NAME
from keylane.proxy.nodes.messages import (
    JSON_BYTES_MAX,
    read_hello,
    read_verdict,
    write_hello,
    write_membership,
    write_refusal,
)
from keylane.proxy.topics.node_values import (
    NO_NODE,
    Hello,
    Membership,
    NodeInfo,
    NodeRule,
    OwnershipClaim,
)

TEXT = st.text(max_size=20)
PLACE = st.tuples(st.text(min_size=1, max_size=20), st.integers(1, 65_535))
RULES = st.builds(NodeRule, topic=TEXT, lanes=st.integers(1, 1024), fingerprint=TEXT)
INFOS = st.builds(
    NodeInfo,
    number=st.integers(0, 999),
    bootstrap=PLACE,
    brokers=st.dictionaries(st.integers(0, 2**31 - 1), PLACE, max_size=3),
    rules=st.lists(RULES, max_size=3).map(tuple),
    lane_name_pattern=TEXT,
    pinned=st.dictionaries(TEXT, st.integers(0, 2**31 - 1), max_size=3),
    control=TEXT,
    version=TEXT,
    journal=st.integers(0, 9),
)
CLAIMS = st.builds(
    OwnershipClaim,
    generation_id=st.integers(-1, 99),
    partitions=st.frozensets(st.integers(0, 60), max_size=9),
)
HELLOS = st.builds(
    Hello,
    node=INFOS,
    ic_partition_count=st.integers(1, 100),
    since=st.integers(-1, 99),
    claim=CLAIMS,
)
TWO = Membership(
    generation_id=7,
    nodes=(NodeInfo(number=1, bootstrap=("a", 1)), NodeInfo(number=4, bootstrap=("b", 2))),
    owners=(1, 4, 4, NO_NODE),
)


def metadata(said: Any) -> bytes:
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    return write_subscription(Subscription(version=2, topics=(TOPIC_NAME,), user_data=text))


def assignment(said: Any, partitions: tuple[int, ...] = ()) -> bytes:
    lanes = [(TOPIC_NAME, partition) for partition in partitions]
    data = zlib.compress(json.dumps(said).encode())
    return write_assignment(lanes, version=0, user_data=data)


def verdict(**changes: Any) -> dict[str, Any]:
    nodes = [{"number": 1, "bootstrap": ["a", 1]}, {"number": 4, "bootstrap": ["b", 2]}]
    return {"format": 1, "generation_id": 7, "nodes": nodes, "owners": [1, 4, 4, -1]} | changes


@given(hello=HELLOS)
def test_a_hello_is_read_as_it_was_written(hello) -> None:
    """All of it, the claim in the protocol's own fields."""
    assert read_hello(write_hello(hello), "m") == hello


@given(infos=st.lists(INFOS, min_size=1, max_size=4, unique_by=lambda info: info.number))
def test_a_membership_is_read_as_it_was_written(infos) -> None:
    """By each of its nodes; the protocol's own part says what is this node's."""
    nodes = tuple(sorted(infos, key=lambda info: info.number))
    owners = tuple(nodes[p % len(nodes)].number for p in range(7))
    membership = Membership(generation_id=3, nodes=nodes, owners=owners)

    for node in nodes:
        written = write_membership(membership, node.number)

        assert read_verdict(written, generation_id=3, number=node.number) == membership
        lanes = read_assignment(written).lanes
        assert {p for _, p in lanes} == membership.owned_by(node.number)


def test_a_refusal_is_its_reason() -> None:
    """It names no partitions."""
    written = write_refusal(3, "taken")

    assert read_verdict(written, generation_id=3, number=1) == "taken"
    assert not read_assignment(written).lanes


def test_fields_of_a_newer_keylane_are_left_alone() -> None:
    """In what a node says of itself, and in what the leader says."""
    said = {"format": 1, "node": {"number": 1, "bootstrap": ["h", 1], "moon": "full"}, "x": []}

    hello = read_hello(metadata(said | {"ic_partition_count": 50}), "m")

    assert hello.node == NodeInfo(number=1, bootstrap=("h", 1)) and not hello.claim.partitions
    assert read_verdict(assignment(verdict(x=1), (0,)), generation_id=7, number=1) == TWO


@pytest.mark.parametrize(
    ("said", "place"),
    [
        (b"", "user data"),
        (b"{", "user data"),
        (b"[" * 100_000, "user data"),
        (b"\xff", "user data"),
        ([], "user data"),
        ({"format": 2}, "format"),
        ({"node": {"number": 1000, "bootstrap": ["h", 1]}}, "node.number"),
        ({"node": {"number": True, "bootstrap": ["h", 1]}}, "node.number"),
        ({"node": {"number": 1, "bootstrap": ["h", 65536]}}, "node.bootstrap.1"),
        ({"node": {"number": 1, "bootstrap": ["", 1]}}, "node.bootstrap.0"),
        ({"node": {"number": 1, "bootstrap": ["h", 1], "brokers": {"x": []}}}, "node.brokers"),
        ({"node": {"number": 1, "bootstrap": ["h", 1], "rules": [{}]}}, "node.rules.0.topic"),
        ({"node": None}, "node"),
        ({"ic_partition_count": 0}, "ic_partition_count"),
        (b" " * (JSON_BYTES_MAX - 100), "user data"),
    ],
)
def test_a_hello_that_is_none_names_the_member_and_the_place(said: Any, place: str) -> None:
    """One bad member must not keep the others from their plan."""
    good = {"format": 1, "node": {"number": 1, "bootstrap": ["h", 1]}, "ic_partition_count": 50}
    text = good | said if isinstance(said, dict) else said

    with pytest.raises(NodeInvalid, match=rf"^member m-1: its subscription: {place}"):
        read_hello(metadata(text), "m-1")


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\2\x7f\xff\xff\xff"])
def test_metadata_that_are_none_name_the_member(data: bytes) -> None:
    """Of another program that joined the group."""
    with pytest.raises(NodeInvalid, match=r"^member m-1: its subscription"):
        read_hello(data, "m-1")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (b"", "is cut"),
        (write_assignment((), version=0), "is cut"),
        (write_assignment((), version=0, user_data=b"{}"), "user data: Error"),
        (
            write_assignment((), version=0, user_data=zlib.compress(b" " * (JSON_BYTES_MAX + 1))),
            "longer than",
        ),
        (assignment({}), "format: Field required"),
        (assignment(verdict(generation_id=6), (0,)), "generation 6, not 7"),
        (assignment(verdict(nodes=[]), ()), "node 1 is not among"),
        (assignment(verdict(nodes=verdict()["nodes"] * 2), (0,)), "not ascending"),
        (assignment(verdict(owners=[1, 5]), (0,)), r"owners \[5\] are no nodes"),
        (assignment(verdict(), (0, 1)), "do not agree"),
        (assignment(verdict(), ()), "do not agree"),
        (assignment(verdict(owners=[1] * 100_001), (0,)), "owners: Tuple"),
    ],
)
def test_an_assignment_that_is_none_is_refused(written: bytes, reason: str) -> None:
    """Nothing is served by what cannot be understood, or contradicts itself."""
    with pytest.raises(NodeInvalid, match=reason):
        read_verdict(written, generation_id=7, number=1)
