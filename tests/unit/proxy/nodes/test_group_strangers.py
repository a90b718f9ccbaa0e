"""Nodes beside strangers: those that stay, those that hold, and those that give up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema

from keylane.errors import ConfigInvalid
from keylane.proxy.nodes.messages import write_hello
from keylane.proxy.topics.node_values import Hello, NodeInfo
from tests.reference.node_world import IC_PARTITIONS, SESSION_S, Node, World
from tests.transcript.entities import build

ALL = list(range(IC_PARTITIONS))
SECRETS = (b"s" * 32,)
OTHER = (b"o" * 32,)
PATIENCE_S = 1.2 * SESSION_S + 1.0


class Stranger:
    """A member that goes straight to the coordinator, and has no secret."""

    def __init__(self, world: World, *, metadata: bytes | None = None, session_s: float = 300.0):
        self.world = world
        self.metadata = hello(7) if metadata is None else metadata
        self.said = {
            "session_timeout": round(1000 * session_s),
            "rebalance_timeout": round(1000 * session_s),
            "protocols": [{"name": "keylane-nodes", "metadata": self.metadata}],
        }
        self.answers: dict[str, dict[str, Any]] = {}
        self.ask("id", 11, 7, **self.said)
        self.member_id = self.answers["id"]["member_id"]

    def ask(self, name: str, api_key: int, version: int, **values: Any) -> None:
        self.answers.pop(name, None)

        def answered(values: dict[str, Any]) -> None:
            self.answers[name] = values

        request = build(load_request_schema(api_key, version), values)
        self.world.group.handle(api_key, request, answered)

    def join(self) -> None:
        self.ask("join", 11, 7, member_id=self.member_id, **self.said)

    def sync(self, assignments: dict[str, bytes] | None = None) -> None:
        given = [{"member_id": to, "assignment": what} for to, what in (assignments or {}).items()]
        generation_id = self.answers["join"]["generation_id"]
        self.ask(
            "sync", 14, 5,
            member_id=self.member_id, generation_id=generation_id, assignments=given,
        )  # fmt: skip

    @property
    def is_member(self) -> bool:
        return self.member_id in self.world.group.members


def hello(number: int) -> bytes:
    node = NodeInfo(number=number, bootstrap=("evil", 1))
    return write_hello(Hello(node=node, ic_partition_count=IC_PARTITIONS))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def start(world: World, *numbers: int, secrets: tuple[bytes, ...] = SECRETS) -> list[Node]:
    """Nodes that have agreed."""
    nodes = []
    for number in numbers:
        nodes.append(Node(world, number, secrets=secrets))
        world.run(2.0)
    assert all(node.is_started for node in nodes)
    return nodes


def held(*nodes: Node) -> list[int]:
    return sorted(p for node in nodes for p in ALL if node.group.holds(p))


def test_a_stranger_beside_nodes_is_put_out_and_given_nothing(world) -> None:
    """It is put out at once; the nodes hold all, and know no node but themselves."""
    a, b = start(world, 0, 1)
    stranger = Stranger(world)

    stranger.join()
    world.run(3.0)

    assert not stranger.is_member
    assert held(a, b) == ALL
    assert {node.number for reported in (*a.reported, *b.reported) for node in reported.nodes} == {
        0,
        1,
    }
    assert a.strangers + b.strangers == 1


def test_a_copied_hello_makes_no_node(world) -> None:
    """It is of another member, as all can read it in the group."""
    a, b = start(world, 0, 1)
    copied = next(iter(world.group.members.values())).metadata
    stranger = Stranger(world, metadata=copied)

    stranger.join()
    world.run(3.0)

    assert not stranger.is_member and held(a, b) == ALL


def test_a_stranger_that_was_there_first_only_delays_the_start(world) -> None:
    """No node obeys it as the leader; it is put out after the patience of nodes that are new."""
    stranger = Stranger(world)
    stranger.join()
    stranger.sync({stranger.member_id: b"mine"})
    node = Node(world, 0, secrets=SECRETS)
    world.run(1.5)
    stranger.join()
    world.run(0.1)
    stranger.sync({stranger.member_id: b"mine"})

    world.run(PATIENCE_S)
    assert not held(node), "nodes with another secret would hold a lease for as long"
    world.run(PATIENCE_S + 3.0)

    assert node.is_started and held(node) == ALL
    assert not stranger.is_member


def test_a_stranger_that_is_no_keylane_delays_nothing(world) -> None:
    """What no node can have written is put out at sight."""
    stranger = Stranger(world, metadata=b"\0\0\0\0\0\0")
    stranger.join()
    stranger.sync()

    node = Node(world, 0, secrets=SECRETS)
    world.run(3.0)

    assert held(node) == ALL and not stranger.is_member


def test_a_stranger_that_holds_up_a_rebalance_is_put_out(world) -> None:
    """Its session of minutes is none of a node's: nodes wait for one of theirs, no longer."""
    a, b = start(world, 0, 1)
    stranger = Stranger(world)
    a.is_hung = b.is_hung = True
    stranger.join()
    world.group.members[stranger.member_id].join_reply = None  # joined, and receives no more
    a.is_hung = b.is_hung = False

    world.run(SESSION_S + 8.0)

    assert not stranger.is_member and held(a, b) == ALL


def test_what_a_leader_said_before_is_not_obeyed_again(world) -> None:
    """A verdict is of one generation, one leader and one member."""
    a, b = start(world, 0, 1)
    known = {key: member.assignment for key, member in world.group.members.items()}
    stranger = Stranger(world)
    stranger.join()
    world.group.leader = stranger.member_id
    world.run(1.2)

    stranger.sync(known)
    world.run(0.05)
    assert not held(a, b)
    world.run(4.0)

    assert not stranger.is_member and held(a, b) == ALL


def test_a_node_with_another_secret_gives_up_and_the_others_go_on(world) -> None:
    """With one line that names the key; the others hold all, and agree on no one else."""
    a, b = start(world, 0, 1)

    wrong = Node(world, 2, secrets=OTHER)
    world.run(3 * PATIENCE_S)

    assert isinstance(wrong.outcome, ConfigInvalid) and "node_secret_file" in str(wrong.outcome)
    assert held(a, b) == ALL and not wrong.reported
    assert {node.number for reported in (*a.reported, *b.reported) for node in reported.nodes} == {
        0,
        1,
    }


def test_a_node_without_a_secret_does_not_hold_what_others_hold(world) -> None:
    """Whichever comes first: a roll-out of the first secret by one node after another."""
    (signed,) = start(world, 0)
    bare = Node(world, 1)
    world.run(3 * PATIENCE_S)
    assert held(signed) == ALL and not held(bare)
    bare.kill()
    signed.kill()
    world.run(2 * SESSION_S)

    (bare,) = start(world, 2, secrets=())
    Node(world, 3, secrets=SECRETS)
    world.run(4 * PATIENCE_S)  # the world checks at each step that no two hold the same

    assert len(world.group.members) >= 1


def test_a_secret_is_rotated_without_a_generation_without_owners(world) -> None:
    """New as the second, then as the first, then alone; nodes join in between."""
    nodes = start(world, 0, 1, 2)
    new = (b"n" * 32,)

    for secrets in ((*SECRETS, *new), (*new, *SECRETS), new):
        for node in nodes:
            node.secrets = secrets
            node.deliver(node.group.rejoin)
            node.control += "x"
            world.run(2.5)
            assert held(*nodes) == ALL
    nodes += start(world, 3, secrets=new)
    world.run(3.0)

    assert held(*nodes) == ALL
    assert sum(node.strangers for node in nodes) == 0


def test_members_without_a_protocol_in_common_are_put_out(world) -> None:
    """The coordinator refuses to mix them with nodes, so none of them is one."""
    stranger = Stranger(world)
    handle = world.group.handle

    def refuse(api_key: int, request: Any, reply: Any) -> None:
        if api_key == 11 and stranger.is_member and request.member_id:
            reply({"error_code": 23})
        else:
            handle(api_key, request, reply)

    world.group.handle = refuse
    node = Node(world, 0, secrets=SECRETS)
    while len(world.group.pending) < 2:  # the node has looked at an empty group
        world.run(0.001)
    stranger.join()
    world.run(5.0)

    assert "join" not in stranger.answers, "a generation was made with it"
    assert not stranger.is_member and held(node) == ALL
