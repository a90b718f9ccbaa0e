"""Nodes that put out another which still holds a lease: a third one is given nothing meanwhile.

The world checks at each step of each node that no partition has two holders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from keylane.errors import ConfigInvalid
from keylane.proxy.nodes.gate.strangers import Strangers
from tests.reference.group_coordinator import DESCRIBE_GROUPS
from tests.reference.node_world import IC_PARTITIONS, SESSION_S, Link, Node, World

ALL = list(range(IC_PARTITIONS))
SECRETS, OTHER = (b"s" * 32,), (b"o" * 32,)
PATIENCE_S = 1.2 * SESSION_S + 1.0
STEP_S = 0.01
WAIT_S = 0.1


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def held(*nodes: Node) -> list[int]:
    return sorted(p for node in nodes for p in ALL if node.group.holds(p))


def member_id(node: Node) -> str:
    return node.group._member_id


def run_until(world: World, is_so: Any, *, seconds: float) -> None:
    for _ in range(round(seconds / STEP_S)):
        if is_so():
            return
        world.run(STEP_S)
    raise AssertionError(f"not so in {seconds:g} s")


async def no_look(*args: Any, **kwargs: Any) -> None:
    """Stands for `Gate.tend` of a node that hangs whenever it would put one out."""


def put_out_a_holder(world: World) -> tuple[Node, Node]:
    """One that holds all and does not know yet that it is put out; the one that did it."""
    holder = Node(world, 0, secrets=SECRETS)
    world.run(2.0)
    holder.group._gate.tend = no_look  # type: ignore[method-assign]
    other = Node(world, 0, secrets=OTHER)
    known = member_id(holder)
    run_until(world, lambda: known not in world.group.members, seconds=2 * PATIENCE_S)
    assert held(holder) == ALL
    return holder, other


def test_a_node_that_has_just_begun_to_serve_is_left_its_seconds_to_act(world) -> None:
    """Two that start at one moment with secrets of their own wait for the same time.

    The one that leads then begins to serve, and the other one's patience begins anew: formerly it
    put the leader out in that moment, and left; a third found the group empty, and held all that
    the first one's lease was good for.
    """
    first, second = Node(world, 0, secrets=SECRETS), Node(world, 0, secrets=OTHER)
    world.run(14.0)
    third = Node(world, 0, secrets=SECRETS)
    second.stop()
    world.run(0.5)
    assert held(first) == ALL

    world.run(2 * PATIENCE_S)

    assert held(first) == ALL and not held(third)
    assert len(first.reported) >= 2 and first.reported[-1].owners == (0,) * IC_PARTITIONS


def test_of_two_that_start_at_once_with_other_secrets_the_later_gives_up(world) -> None:
    """As beside nodes that were there before."""
    first, second = Node(world, 0, secrets=SECRETS), Node(world, 1, secrets=OTHER)

    world.run(2 * PATIENCE_S)

    assert held(first) == ALL
    assert isinstance(second.outcome, ConfigInvalid)
    assert "node_secret_file" in str(second.outcome)


def test_nodes_without_a_secret_put_out_those_that_sign(world) -> None:
    """They could read their words, but not the other way round: one of both has to go."""
    bare = [Node(world, number) for number in (0, 1)]
    world.run(3.0)

    signed = Node(world, 2, secrets=SECRETS)
    world.run(PATIENCE_S - 1.0)

    assert isinstance(signed.outcome, ConfigInvalid)
    assert held(*bare) == ALL
    assert {
        node.number for each in bare for reported in each.reported for node in reported.nodes
    } == {0, 1}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_one_that_put_out_a_holder_is_counted_until_the_lease_is_over(world, end: str) -> None:
    """Also if it ends: the next one waits for its session, longer than for the lease."""
    holder, other = put_out_a_holder(world)
    left = member_id(other)

    getattr(other, end)()
    world.run(WAIT_S)
    third = Node(world, 1, secrets=SECRETS)
    holder.is_hung = True  # and does not learn that it is out
    world.run(0.75 * SESSION_S)
    assert left in world.group.members and not held(third) and held(holder) == ALL
    world.run(2 * SESSION_S)

    assert held(third) == ALL and not held(holder)


def test_one_that_put_out_a_holder_gives_nothing_away_when_it_is_put_out_itself(world) -> None:
    """It comes back, finds the group empty, and knows better."""
    holder, other = put_out_a_holder(world)
    holder.is_hung = True
    world.run(WAIT_S)

    world.group._remove(member_id(other))
    world.run(0.7 * SESSION_S)
    assert held(holder) == ALL and not held(other)
    world.run(SESSION_S)

    assert held(other) == ALL and not held(holder)


def test_one_that_hung_before_it_acts_puts_out_none(world, monkeypatch) -> None:
    """Others have agreed meanwhile, and what it knows is old."""
    holder = Node(world, 0, secrets=SECRETS)
    world.run(2.0)
    known = member_id(holder)
    tend, holder.group._gate.tend = holder.group._gate.tend, no_look  # type: ignore[method-assign]
    other = Node(world, 1, secrets=OTHER)
    arrived = world.arrived
    seen = []

    def hang(link: Link, request: Any, answer: Any) -> None:
        if link.node is other and request.__api_key__ == DESCRIBE_GROUPS and world.now_s > 12.0:
            due = other.group._gate._strangers
            if due.due(other.time(), is_established=False, contact_s=other.time()):
                other.is_hung = True
                seen.append(world.now_s)
        arrived(link, request, answer)

    monkeypatch.setattr(world, "arrived", hang)
    run_until(world, lambda: seen, seconds=2 * PATIENCE_S)
    monkeypatch.setattr(world, "arrived", arrived)
    holder.group._gate.tend = tend  # type: ignore[method-assign]
    world.run(3.0)
    assert list(world.group.members) == [member_id(holder)]

    other.is_hung = False
    world.run(0.9)

    assert held(holder) == ALL and known in world.group.members


def test_patience_is_counted_within_one_generation_of_another_leader() -> None:
    """Each may be the first in which it serves; a leader's own generations count on."""
    strangers = Strangers(SESSION_S)

    def due(now_s: float) -> list[str]:
        return strangers.due(now_s, is_established=False, contact_s=now_s)

    strangers.join({"m": True}, 0.0, is_leader=False)
    strangers.join({"m": True}, 10.0, is_leader=False)
    assert not due(PATIENCE_S) and due(10.0 + PATIENCE_S) == ["m"]
    strangers.join({"m": True}, 20.0, is_leader=True)
    strangers.join({"m": True}, 21.0, is_leader=True)

    assert due(10.0 + PATIENCE_S) == ["m"]
    assert strangers.withholds(19.0 + PATIENCE_S, is_established=False)
    assert not strangers.withholds(20.0 + PATIENCE_S, is_established=False)


@pytest.mark.parametrize(
    ("is_leader", "is_established", "age_s", "is_due"),
    [
        (False, False, 0.05 * SESSION_S, True),
        (False, False, 0.2 * SESSION_S, False),
        (True, False, 0.2 * SESSION_S, True),
        (False, True, 0.2 * SESSION_S, True),
        (True, True, 0.9 * SESSION_S, False),
    ],
)
def test_only_members_for_sure_put_out_what_may_be_a_node(
    is_leader: bool, is_established: bool, age_s: float, is_due: bool
) -> None:
    """By the age of the last heartbeat; what cannot be a node is put out in any case."""
    strangers = Strangers(SESSION_S)
    strangers.join({"like": True, "unlike": False}, 0.0, is_leader=is_leader)
    now_s = PATIENCE_S

    due = strangers.due(now_s, is_established=is_established, contact_s=now_s - age_s)

    assert due == (["like", "unlike"] if is_due else ["unlike"])
    assert strangers.due(now_s, is_established=is_established, contact_s=None) == ["unlike"]


def test_a_lease_is_expected_only_where_one_that_is_new_put_out() -> None:
    """Another led it: a leader gave nothing to members of its generation."""
    for is_leader, is_established, guard_s in (
        (False, False, SESSION_S),
        (True, False, 0.0),
        (False, True, 0.0),
    ):
        strangers = Strangers(SESSION_S)
        strangers.join({"like": True, "unlike": False}, 0.0, is_leader=is_leader)

        strangers.expect_leases(["unlike"], 1.0, is_established=is_established)
        assert strangers.guard_s(1.0) == 0.0
        strangers.expect_leases(["like"], 1.0, is_established=is_established)

        assert strangers.guard_s(1.0) == guard_s
        assert strangers.withholds(1.0, is_established=True) == bool(guard_s)


def test_one_that_saw_another_before_it_joined_gives_nothing_away_at_once(world) -> None:
    """It may have been put out in between, by one that leaves the group to us, and serve yet."""
    holder = Node(world, 0, secrets=SECRETS)
    world.run(2.0)
    third = Node(world, 1, secrets=OTHER)
    while not world.group.pending:  # it looks before it asks for a member id
        world.run(0.001)

    world.group._remove(member_id(holder))
    holder.is_hung = True
    world.run(0.5 * SESSION_S)
    assert held(holder) == ALL and list(world.group.members) == [member_id(third)]
    world.run(SESSION_S)

    assert held(third) == ALL and not held(holder)
