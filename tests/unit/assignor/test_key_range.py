"""assignor/{key_range,round_robin,ranges}.py: worked examples, and stock results."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from keylane.assignor.key_range import RANGE, ROUND_ROBIN, RangedPlan, Strategy, assign_key_ranges
from keylane.assignor.model import Member
from keylane.keyrange.space import HASH_MAX

N = HASH_MAX
LOWER, UPPER, WHOLE = (0, N // 2 - 1), (N // 2, N), (0, N)
THIRDS = ((0, N // 3 - 1), (N // 3, 2 * N // 3 - 1), (2 * N // 3, N))
STRATEGIES = pytest.mark.parametrize("strategy", [ROUND_ROBIN, RANGE], ids=lambda s: s.name)
WORKED_EXAMPLE = (
    '{"by_member": {"M1": [["tp1", 0, 4611686018427387902]],'
    ' "M2": [["tp2", 0, 4611686018427387902]],'
    ' "M3": [["tp3", 0, 9223372036854775807]],'
    ' "M4": [["tp1", 4611686018427387903, 9223372036854775807]],'
    ' "M5": [["tp2", 4611686018427387903, 9223372036854775807]]},'
    ' "by_partition": {"tp1": ["M1", "M4"], "tp2": ["M2", "M5"], "tp3": ["M3"]}}'
)
"""The worked example, letter by letter but for the spaces."""


def group(count: int, *topics: str, prefix: str = "c") -> list[Member]:
    return [
        Member(member_id=f"{prefix}{number}", topics=frozenset(topics))
        for number in range(1, count + 1)
    ]


def assign(
    strategy: Strategy,
    partitions: dict[str, int],
    members: list[Member],
    *,
    coordinator: bool = True,
    topic: bool = True,
) -> RangedPlan:
    return assign_key_ranges(
        strategy,
        partitions,
        dict.fromkeys(partitions, topic),
        members,
        coordinator_allows_ic=coordinator,
    )


def by_partition(plan: RangedPlan) -> dict[str, dict[str, tuple[int, int]]]:
    """Partition (`t1p0`) -> member -> range, members in the order of their ranges."""
    turned: dict[str, dict[str, tuple[int, int]]] = {}
    for topic, members in plan.items():
        for member_id, parts in members.items():
            for partition, key_range in parts:
                place = turned.setdefault(f"{topic}p{partition}", {})
                place[member_id] = (key_range.lo, key_range.hi)
    return {
        place: dict(sorted(turned[place].items(), key=lambda item: item[1]))
        for place in sorted(turned)
    }


def stock(assignor: Any, partitions: dict[str, int], members: list[Member]) -> dict[str, Any]:
    """What a stock client's leader assigns; every partition whole."""
    cluster = SimpleNamespace(
        partitions_for_topic=lambda topic: set(range(partitions[topic])),
    )
    metadata = {member.member_id: assignor.metadata(member.topics) for member in members}
    plan: dict[str, Any] = {topic: {} for member in members for topic in member.topics}
    for member_id, assignment in assignor.assign(cluster, metadata).items():
        for topic, indexes in assignment.assignment:
            for index in indexes:
                plan[topic].setdefault(member_id, []).append((index, WHOLE))
    return plan


def plain(plan: Any) -> Any:
    return {
        topic: {
            member_id: sorted((p, r if isinstance(r, tuple) else (r.lo, r.hi)) for p, r in parts)
            for member_id, parts in members.items()
            if parts
        }
        for topic, members in plan.items()
    }


def test_the_worked_example_byte_for_byte() -> None:
    """Five members on three partitions, with the literal split."""
    plan = assign(ROUND_ROBIN, {"tp": 3}, group(5, "tp", prefix="M"))

    by_member: dict[str, list[list[Any]]] = {}
    members_of: dict[str, list[str]] = {}
    for member_id, parts in plan["tp"].items():
        for partition, key_range in parts:
            name = f"tp{partition + 1}"
            by_member.setdefault(member_id, []).append([name, key_range.lo, key_range.hi])
            members_of.setdefault(name, []).append(member_id)
    reported = {
        "by_member": {member_id: by_member[member_id] for member_id in sorted(by_member)},
        "by_partition": {name: members_of[name] for name in sorted(members_of)},
    }
    assert json.dumps(reported) == WORKED_EXAMPLE


def test_range_deals_blocks() -> None:
    """Five members on two topics of two and three partitions, dealt in blocks."""
    plan = assign(RANGE, {"t1": 2, "t2": 3}, group(5, "t1", "t2"))

    assert by_partition(plan) == {
        "t1p0": {"c1": THIRDS[0], "c2": THIRDS[1], "c3": THIRDS[2]},
        "t1p1": {"c4": LOWER, "c5": UPPER},
        "t2p0": {"c1": LOWER, "c2": UPPER},
        "t2p1": {"c3": LOWER, "c4": UPPER},
        "t2p2": {"c5": WHOLE},
    }


def test_the_thirds_are_the_literal_numbers() -> None:
    """The derived ranges of t1p0, digit by digit."""
    assert THIRDS == (
        (0, 3074457345618258601),
        (3074457345618258602, 6148914691236517203),
        (6148914691236517204, 9223372036854775807),
    )


def test_round_robin_deals_in_turn() -> None:
    """Members are dealt in turn over all partitions, not in blocks."""
    plan = assign(ROUND_ROBIN, {"t1": 2, "t2": 3}, group(5, "t1", "t2"))

    assert {place: list(members) for place, members in by_partition(plan).items()} == {
        "t1p0": ["c1", "c3", "c5"],
        "t1p1": ["c2", "c4"],
        "t2p0": ["c1", "c4"],
        "t2p1": ["c2", "c5"],
        "t2p2": ["c3"],
    }


@STRATEGIES
def test_a_split_needs_more_sharers_than_partitions(strategy: Strategy) -> None:
    """Members in the number of partitions split nothing; one more splits a partition."""
    even = by_partition(assign(strategy, {"t": 3}, group(3, "t")))
    more = by_partition(assign(strategy, {"t": 3}, group(4, "t")))

    assert all(list(members.values()) == [WHOLE] for members in even.values())
    assert sorted(len(members) for members in more.values()) == [1, 1, 2]


@STRATEGIES
@pytest.mark.parametrize("switch", ["coordinator", "topic"])
def test_a_split_needs_both_switches(strategy: Strategy, switch: str) -> None:
    """One switch off, the coordinator's or the topic's, gives the ordinary assignment."""
    plan = assign(strategy, {"t": 3}, group(5, "t"), **{switch: False})

    assert all(list(members.values()) == [WHOLE] for members in by_partition(plan).values())
    assert set(plan["t"]) == {"c1", "c2", "c3"}


@STRATEGIES
def test_only_members_that_share_are_counted(strategy: Strategy) -> None:
    """Three of five members share three partitions, so nothing is split."""
    members = group(5, "t")
    opted_out = [
        Member(member_id=m.member_id, topics=m.topics, shares=m.member_id not in {"c1", "c4"})
        for m in members
    ]

    plan = assign(strategy, {"t": 3}, opted_out)

    assert plain(plan) == plain(assign(strategy, {"t": 3}, members, topic=False))


def test_a_member_that_does_not_share_gets_nothing_of_a_shared_topic() -> None:
    """The rule of these two strategies."""
    members = [*group(4, "t"), Member(member_id="n", topics=frozenset({"t"}), shares=False)]

    plan = assign(ROUND_ROBIN, {"t": 3}, members)

    assert set(plan["t"]) == {"c1", "c2", "c3", "c4"}


def test_each_topic_decides_for_itself() -> None:
    """Five members share a topic of two partitions and not one of eight."""
    plan = assign(ROUND_ROBIN, {"few": 2, "many": 8}, group(5, "few", "many"))

    places = by_partition(plan)
    assert [len(places[f"fewp{p}"]) for p in range(2)] == [3, 2]
    assert all(list(places[f"manyp{p}"].values()) == [WHOLE] for p in range(8))


@pytest.mark.parametrize(
    ("strategy", "assignor"),
    [(ROUND_ROBIN, RoundRobinPartitionAssignor), (RANGE, RangePartitionAssignor)],
    ids=["roundrobin", "range"],
)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 12])
def test_not_shared_equals_stock(strategy: Strategy, assignor: Any, count: int) -> None:
    """The result without sharing is that of a stock client's leader."""
    partitions = {"a": 4, "b": 1, "c": 9}
    members = [
        Member(
            member_id=f"m{number:02}",
            topics=frozenset(topic for place, topic in enumerate("abc") if number % 3 != place),
        )
        for number in range(count)
    ]

    plan = assign(strategy, partitions, members, topic=False)

    assert plain(plan) == plain(stock(assignor, partitions, members))
    assert strategy.name == assignor.name


@STRATEGIES
def test_the_order_of_members_does_not_matter(strategy: Strategy) -> None:
    """The same members in another order get the same ranges."""
    members = group(9, "t", "u")

    assert assign(strategy, {"t": 4, "u": 2}, members) == assign(
        strategy, {"t": 4, "u": 2}, members[::-1]
    )


def test_topics_without_subscribers_are_left_out() -> None:
    """A topic without subscribers, or a group without members, needs no plan."""
    assert assign(ROUND_ROBIN, {"t": 3, "u": 1}, group(1, "u")) == assign(
        ROUND_ROBIN, {"u": 1}, group(1, "u")
    )
    assert assign(RANGE, {"t": 3}, []) == {}
