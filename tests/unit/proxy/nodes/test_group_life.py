"""A node among others, one misfortune at a time; the world checks all holders all along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema

from keylane.errors import ConfigInvalid, UpstreamLost
from tests.reference.node_world import IC_PARTITIONS, SESSION_S, Node, World
from tests.transcript.entities import build

ALL = list(range(IC_PARTITIONS))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def start(world: World, *numbers: int) -> list[Node]:
    """Nodes that have agreed."""
    nodes = []
    for number in numbers:
        nodes.append(Node(world, number))
        world.run(2.0)
    assert all(node.is_started for node in nodes)
    return nodes


def held(node: Node) -> list[int]:
    return [p for p in ALL if node.group.holds(p)]


def arrived(world: World, number: int) -> list[str]:
    """What a node has asked since the last look, heartbeats left out."""
    names = [name for n, name in world.requests if n == number and "Heartbeat" not in name]
    world.requests.clear()
    return names


def test_a_lone_member_holds_everything(world) -> None:
    """And goes on holding it, in one term, by its heartbeats."""
    (node,) = start(world, 3)
    terms = {node.group.term(p) for p in ALL}

    world.run(10 * SESSION_S)

    assert held(node) == ALL
    assert {node.group.term(p) for p in ALL} == terms and len(terms) == 1
    assert [m.generation_id for m in node.reported] == [1]
    assert (
        node.group.membership is node.reported[0]
        and node.reported[0].owners == (3,) * IC_PARTITIONS
    )


def test_before_the_start_nothing_is_held(world) -> None:
    """There is no membership either."""
    node = Node(world, 0)

    assert not held(node) and node.group.term(0) == -1
    assert node.group.membership is None


def test_a_node_that_joins_gets_its_share_and_the_rest_keeps_its_term(world) -> None:
    """All know of all."""
    a, b = start(world, 0, 1)
    terms = {p: a.group.term(p) for p in held(a)}

    (c,) = start(world, 2)

    assert sorted(held(a) + held(b) + held(c)) == ALL
    assert all(a.group.term(p) == terms[p] for p in held(a)), "its terms go on"
    assert a.group.membership == b.group.membership == c.group.membership == c.reported[-1]
    assert [info.number for info in c.reported[-1].nodes] == [0, 1, 2]


def test_a_node_that_stops_is_not_waited_for(world) -> None:
    """Its partitions have another owner a heartbeat later."""
    a, b = start(world, 0, 1)

    b.stop()
    world.run(1.1)

    assert b.is_stopped and not held(b)
    assert held(a) == ALL


def test_a_node_that_gives_up_ends_first_what_it_has_begun(world) -> None:
    """At a rebalance and at its stop: meanwhile it begins nothing, and the others wait for it."""
    a, b = start(world, 0, 1)
    b.busy_s, before = 0.4, held(b)

    c = Node(world, 2)
    while b.group.takes_on(before[0]):
        world.run(0.02)
    world.run(0.35)
    assert held(b) == before and not held(c)
    world.run(2.0)
    assert sorted(held(a) + held(b) + held(c)) == ALL and b.group.takes_on(held(b)[0])

    b.stop()
    world.run(0.35)
    assert held(b) and not any(b.group.takes_on(p) for p in ALL)
    world.run(1.2)
    assert b.is_stopped and not held(b) and sorted(held(a) + held(c)) == ALL


def test_a_number_that_is_taken_is_refused(world) -> None:
    """The one that was there stays; the other gets both addresses."""
    (a,) = start(world, 4)

    twin = Node(world, 4)
    generations = len(a.reported)
    world.run(SESSION_S)
    assert len(a.reported) == generations, "it looks, and disturbs no other"
    world.run(6.0)

    assert isinstance(twin.outcome, ConfigInvalid) and "4 is the number" in str(twin.outcome)
    assert held(a) == ALL and not held(twin)


def test_a_node_that_was_expelled_and_replaced_stays_out(world) -> None:
    """It was hung; another with its number has come. It tries again, and is let in one day."""
    (a,) = start(world, 4)
    a.is_hung = True
    world.run(2 * SESSION_S)
    (b,) = start(world, 4)

    a.is_hung = False
    world.run(5.0)
    assert a.group._member_id not in world.group.members and not held(a) and held(b) == ALL

    b.stop()
    world.run(40.0)
    assert held(a) == ALL


def pause_s(world: World, node: Node, partitions: list[int], seconds: float) -> float:
    """For how long a node did not hold some of these, of so many seconds."""
    paused_s = 0.0
    for _ in range(round(seconds / 0.05)):
        world.run(0.05)
        paused_s += 0.0 if set(partitions) <= set(held(node)) else 0.05
    return paused_s


def test_a_node_that_is_killed_and_comes_back_stops_only_its_own_groups(world) -> None:
    """The others wait for as long as a rebalance takes, not until the dead one is given up."""
    a, b, c = start(world, 0, 1, 2)
    others = {node: held(node) for node in (a, b)}
    terms = {p: node.group.term(p) for node in others for p in held(node)}

    c.kill()
    world.requests.clear()
    back = Node(world, 2)
    world.run(0.9 * SESSION_S)
    assert all(held(node) == before for node, before in others.items())
    assert not held(back) and not arrived(world, 2).count("JoinGroupRequest")
    pauses = pause_s(world, a, others[a][:2], 6.0)

    assert pauses < 2.5
    assert back.is_started and sorted(held(a) + held(b) + held(back)) == ALL
    assert all(node.group.term(p) == terms[p] for node in (a, b) for p in held(node) if p in terms)


def test_a_node_comes_back_while_its_hung_self_has_a_lease(world) -> None:
    """No node holds what the hung one would find that it holds; awake, it keeps its number."""
    a, b = start(world, 0, 1)
    b.is_hung = True
    back = Node(world, 1)
    world.run(0.5 * SESSION_S)
    b.is_hung = False
    world.run(2 * SESSION_S)

    assert isinstance(back.outcome, ConfigInvalid) and "1 is the number" in str(back.outcome)
    assert sorted(held(a) + held(b)) == ALL and held(b)


def test_a_node_that_comes_back_waits_through_a_coordinator_that_moves(world) -> None:
    """The new one counts the dead for a session time-out anew; then all join, as they must."""
    a, b = start(world, 0, 1)
    b.kill()
    back = Node(world, 1)
    world.run(0.5 * SESSION_S)

    world.move(1.0)
    world.run(3 * SESSION_S)

    assert back.is_started and sorted(held(a) + held(back)) == ALL


def test_a_node_that_hung_holds_nothing_when_it_wakes_up(world) -> None:
    """Its clock alone ends it; then a heartbeat says that it was expelled, and it joins as new."""
    a, b = start(world, 0, 1)
    before, terms = held(b), {b.group.term(p) for p in held(b)}
    b.is_hung = True
    world.run(8.5)
    assert not held(b), "the others have not even noticed"
    assert len(held(a)) < IC_PARTITIONS
    world.run(5.0)
    assert held(a) == ALL
    reported = len(b.reported)

    b.is_hung = False
    assert not held(b)
    world.run(3.0)

    assert len(held(b)) == len(before) and len(b.reported) == reported + 1
    assert not terms & {b.group.term(p) for p in held(b)}


def test_the_lease_counts_from_when_a_request_was_sent(world) -> None:
    """An answer to SyncGroup takes 5 s, then nothing comes through any more: 3 s are left."""
    a, b = start(world, 0, 1)
    b.answer_s = 5.0
    b.control = "moved"
    b.deliver(b.group.rejoin)
    world.run(5.0 + 5.0 + 0.5)  # JoinGroup's answer, SyncGroup's
    assert held(b)

    b.is_isolated = True
    world.run(2.3)
    assert held(b)
    world.run(0.4)

    assert not held(b)
    world.run(3 * SESSION_S)
    assert held(a) == ALL


def test_a_joingroup_that_was_given_up_is_left_behind(world) -> None:
    """It may arrive later; so the member leaves, and comes back as another."""
    a, b = start(world, 0, 1)
    member_id = b.group._member_id
    b.request_s = 12.0
    b.deliver(b.group.rejoin)
    b.control = "moved"
    world.run(0.5)
    b.break_links()
    b.request_s = 0.001
    arrived(world, 1)

    world.run(3.0)

    assert arrived(world, 1)[:6] == [
        "FindCoordinatorRequest",
        "LeaveGroupRequest",
        "DescribeGroupsRequest",
        "JoinGroupRequest",
        "JoinGroupRequest",
        "SyncGroupRequest",
    ]
    assert b.group._member_id not in {member_id, ""}
    world.run(12.0)
    assert sorted(held(a) + held(b)) == ALL


def test_a_missed_generation_ends_the_terms(world) -> None:
    """While B's SyncGroup is under way, C comes, has B's partitions, and goes."""
    a, b = start(world, 0, 1)
    before = {p: b.group.term(p) for p in held(b)}
    c = Node(world, 2)
    b.answer_s = 0.9  # B learns late of the generation that has C
    while not c.is_started:
        world.run(0.01)
    assert set(held(c)) & set(before), "C has some that were B's"

    c.stop()
    world.run(SESSION_S)
    b.answer_s = 0.001
    world.run(5.0)

    assert sorted(held(a) + held(b)) == ALL
    again = [p for p in held(b) if p in before]
    assert again and not set(before.values()) & {b.group.term(p) for p in again}


@pytest.mark.parametrize("how", ["move", "crash"])
def test_a_coordinator_that_goes_away_costs_nothing_within_the_lease(world, how: str) -> None:
    """The next one knows the same members; terms go on."""
    a, b = start(world, 0, 1)
    terms = [[node.group.term(p) for p in held(node)] for node in (a, b)]
    reported = len(a.reported)

    getattr(world, how)(1.0)
    for _ in range(20):
        world.run(0.5)
        assert sorted(held(a) + held(b)) == ALL

    assert [[node.group.term(p) for p in held(node)] for node in (a, b)] == terms
    assert len(a.reported) == reported


def test_news_of_a_node_reach_the_others(world) -> None:
    """They come soon; and no node joins again when nothing has changed."""
    a, b = start(world, 0, 1)
    arrived(world, 1)

    b.deliver(b.group.rejoin)
    world.run(3.0)
    assert not arrived(world, 1)

    b.control = "10.0.0.1:1"
    b.deliver(b.group.rejoin)
    world.run(1.2)
    assert arrived(world, 1) == ["JoinGroupRequest", "SyncGroupRequest"]
    membership = a.group.membership
    assert membership is not None
    assert [info.control for info in membership.nodes] == ["", "10.0.0.1:1"]


def test_a_caller_waits_for_the_end_while_all_join(world) -> None:
    """At most for a session time-out."""
    a, b = start(world, 0, 1)
    done: list[tuple[float, bool]] = []

    async def wait() -> None:
        await a.group.settled()
        done.append((round(world.now_s - since_s, 1), a.group.holds(held_before)))

    held_before = held(a)[0]
    b.is_hung = True
    a.control = "moved"
    a.deliver(a.group.rejoin)
    world.run(0.1)
    since_s = world.now_s
    assert not held(a)
    a.deliver(lambda: a._spawn(wait))
    world.run(5.0)
    assert a.group._member_id in world.group.members
    assert not done

    world.run(6.0)

    ((waited_s, is_held),) = done
    assert waited_s <= SESSION_S and is_held


def test_no_caller_waits_when_nothing_is_under_way(world) -> None:
    """The common case is at once."""
    (a,) = start(world, 0)
    done: list[float] = []

    async def wait() -> None:
        await a.group.settled()
        done.append(world.now_s)

    now_s = world.now_s
    a.deliver(lambda: a._spawn(wait))
    world.run(0.0)

    assert done == [now_s]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (26, "node_session_timeout_ms"),
        (30, "READ"),
        (81, "group.max.size"),
    ],
)
def test_what_another_try_does_not_change_ends_the_start(world, code: int, reason: str) -> None:
    """The error names what the operator has to change."""
    world.group.handle = lambda _key, _request, reply: reply({"error_code": code})

    node = Node(world, 0)
    world.run(1.0)

    assert isinstance(node.outcome, ConfigInvalid) and reason in str(node.outcome)


def test_without_a_coordinator_the_start_gives_up(world) -> None:
    """After a minute and three sessions, with the last reason."""
    world.down_until_s = {1: 1e9, 2: 1e9}

    node = Node(world, 0)
    world.run(89.0)
    outcomes = [node.outcome]
    world.run(3.0)
    outcomes.append(node.outcome)

    assert outcomes[0] is None
    assert isinstance(outcomes[1], UpstreamLost) and "refused" in str(outcomes[1])


def test_a_member_that_talks_nonsense_is_no_node(world) -> None:
    """It gets the reason; the others share everything."""
    (a,) = start(world, 0)
    answers: list[dict[str, Any]] = []

    def ask(api_key: int, version: int, **values: Any) -> dict[str, Any]:
        request = build(load_request_schema(api_key, version), values)
        world.group.handle(api_key, request, answers.append)
        world.run(1.5)
        return answers[-1]

    protocols = [{"name": "keylane-nodes", "metadata": b"\0\0nonsense"}]
    said = {"session_timeout": 10_000, "protocols": protocols}
    member_id = ask(11, 7, **said)["member_id"]
    generation_id = ask(11, 7, member_id=member_id, **said)["generation_id"]
    given = ask(14, 5, member_id=member_id, generation_id=generation_id)["assignment"]

    assert held(a) == ALL
    assert given, "it gets the reason"
    membership = a.group.membership
    assert membership is not None and len(membership.nodes) == 1


def test_a_leader_that_talks_nonsense_is_not_obeyed(world) -> None:
    """Nothing is held by what cannot be read, also where we lead and another spoke in our name."""
    (a,) = start(world, 0)
    handle = world.group.handle

    def garble(api_key: int, request: Any, reply: Any) -> None:
        handle(
            api_key, request, lambda v: reply(v | {"assignment": b"?"} if "assignment" in v else v)
        )

    world.group.handle = garble
    a.control = "moved"
    a.deliver(a.group.rejoin)
    world.run(3.0)
    assert not held(a)

    world.group.handle = handle
    world.run(3.0)

    assert held(a) == ALL
