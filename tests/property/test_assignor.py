"""assignor/: random groups, topics, opt-outs and histories, and what every plan of them holds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keylane.assignor.checks import find_faults
from keylane.assignor.cooperative import find_withheld, first_step
from keylane.assignor.fill import fill
from keylane.assignor.key_range import RANGE, ROUND_ROBIN, Strategy, assign_key_ranges
from keylane.assignor.level import level, polish
from keylane.assignor.model import Lane, LaneTopic, Member, Plan
from keylane.assignor.protocol import (
    Subscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from keylane.assignor.sticky import plan_sticky, weigh_lanes
from keylane.assignor.units import NO_MEMBER, set_up_board
from keylane.errors import FrameInvalid
from keylane.keyrange.space import HASH_MAX
from tests.reference.assignor import plan_heaviest_first

NAMES = ("a", "b", "c")
STRATEGIES = st.sampled_from([ROUND_ROBIN, RANGE])
RATES = st.one_of(
    st.floats(0, 1e9), st.sampled_from([0.0, 1.0, 1e12, float("nan"), float("inf"), -1.0])
)


@st.composite
def topics(draw: st.DrawFn) -> list[LaneTopic]:
    """Up to three topics, some of them joined by key, some with racks."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return [
        LaneTopic(
            name=name,
            partition_count=(count := draw(st.integers(1, 4))),
            lane_count=draw(st.integers(1, 6)),
            co_group=draw(st.sampled_from([None, "joined"])),
            partition_racks=draw(
                st.sampled_from([(), tuple(frozenset({"r1"}) for _ in range(count))])
            ),
        )
        for name in names
    ]


@st.composite
def members(draw: st.DrawFn, lanes: list[Lane] | None = None) -> list[Member]:
    """Up to nine members, each with its own topics, claims and opt-out."""
    ids = draw(st.lists(st.integers(0, 99), min_size=1, max_size=9, unique=True))
    return [
        Member(
            member_id=f"m{number}",
            topics=draw(st.frozensets(st.sampled_from(NAMES))),
            owned=tuple(draw(st.lists(st.sampled_from(lanes), max_size=6))) if lanes else (),
            generation_id=draw(st.integers(-1, 2)),
            instance_id=draw(st.sampled_from([None, f"i{number}"])),
            rack=draw(st.sampled_from([None, "r1", "r2"])),
            shares=draw(st.sampled_from([True, True, True, False])),
        )
        for number in ids
    ]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Member], list[LaneTopic], dict[Lane, float]]:
    """A group in any state, with any measurements of some of its lanes."""
    known = draw(topics())
    lanes = [(topic.name, index) for topic in known for index in range(topic.index_count)]
    loads = draw(st.dictionaries(st.sampled_from(lanes), RATES, max_size=30))
    return draw(members([*lanes, ("gone", 0), ("a", 999)])), known, loads


def after(plan: Plan, group: list[Member], generation_id: int = 9) -> list[Member]:
    """The group as it joins again, owning what it was given."""
    return [
        replace(member, owned=plan.get(member.member_id, ()), generation_id=generation_id)
        for member in group
    ]


def count_moves(before: list[Member], plan: Plan) -> int:
    """Lanes that a living member had and has no more."""
    return sum(len(set(member.owned) - set(plan[member.member_id])) for member in before)


def same_topic_group(count: int, first: int = 0) -> list[Member]:
    return [
        Member(member_id=f"m{number:03}", topics=frozenset("a"))
        for number in range(first, first + count)
    ]


@given(groups())
def test_every_plan_covers_without_overlap(
    group: tuple[list[Member], list[LaneTopic], dict[Lane, float]],
) -> None:
    """Each lane of a subscribed topic has one subscriber; without sharing they are whole."""
    plan = plan_sticky(*group)

    assert find_faults(plan, group[0], group[1]) == []
    assert set(plan) == {member.member_id for member in group[0]}


@given(groups(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    group: tuple[list[Member], list[LaneTopic], dict[Lane, float]], chance: random.Random
) -> None:
    """Members, claims, topics and loads shuffled: the same plan, in the same order."""
    known, described, loads = group
    plan = plan_sticky(known, described, loads)
    shuffled = [replace(m, owned=tuple(chance.sample(m.owned, len(m.owned)))) for m in known]
    chance.shuffle(shuffled)
    items = chance.sample(sorted(loads.items(), key=str), len(loads))

    again = plan_sticky(shuffled, chance.sample(described, len(described)), dict(items))

    assert list(again.items()) == list(plan.items())


@given(groups())
def test_a_plan_is_kept_when_nothing_changes(
    group: tuple[list[Member], list[LaneTopic], dict[Lane, float]],
) -> None:
    """After two generations of the same group nothing moves any more."""
    known, described, loads = group
    settled = known
    for _ in range(4):
        settled = after(plan_sticky(settled, described, loads), settled)

    assert count_moves(settled, plan_sticky(settled, described, loads)) == 0


@given(groups())
def test_a_calm_plan_moves_lanes_to_new_members_only(
    group: tuple[list[Member], list[LaneTopic], dict[Lane, float]],
) -> None:
    """It is as whole as any other, and members that have lanes already get none of another's.

    Where members take whole partitions only, a new member may change which ones are left whole.
    """
    known, described, loads = group
    known = [replace(member, shares=True) for member in known]
    described = [replace(topic, co_group=None) for topic in described]
    before = after(plan_sticky(known, described, loads), known)
    joined = [*before, Member(member_id="new", topics=frozenset(NAMES))]

    plan = plan_sticky(joined, described, loads, evens_out=False)

    assert find_faults(plan, joined, described) == []
    kept = {lane: one.member_id for one in before if one.owned for lane in one.owned}
    has_lanes = set(kept.values())
    moved = {
        receiver
        for receiver, lanes in plan.items()
        for lane in lanes
        if kept.get(lane, receiver) != receiver
    }
    assert not moved & has_lanes


@given(groups())
def test_the_board_keeps_its_invariants(
    group: tuple[list[Member], list[LaneTopic], dict[Lane, float]],
) -> None:
    """After each step loads are the sums of what is held, and no member has too much."""
    known, described, loads = group
    board = set_up_board(known, described, weigh_lanes(described, loads))
    board.check()

    fill(board)
    board.check()
    level(board)

    board.check()
    assert all(holder >= 0 for holder in board.holder)


@given(groups())
def test_polishing_moves_units_without_an_owner_and_makes_no_member_worse(
    group: tuple[list[Member], list[LaneTopic], dict[Lane, float]],
) -> None:
    """The busiest is no busier, the lightest no lighter; none gets of another partition."""
    known, described, loads = group
    board = set_up_board(known, described, weigh_lanes(described, loads))
    free = {unit for unit, holder in enumerate(board.holder) if holder == NO_MEMBER}
    fill(board)
    level(board)
    active = sorted({member for crowd in board.crowds for member in crowd})
    load, holder = list(board.load), list(board.holder)
    parts = [set(+spread) for spread in board.spread]

    polish(board, free)

    board.check()
    if active:
        assert max(board.load[m] for m in active) <= max(load[m] for m in active)
        assert min(board.load[m] for m in active) >= min(load[m] for m in active)
    assert {unit for unit, now in enumerate(board.holder) if now != holder[unit]} <= free
    assert all(set(+now) <= before for now, before in zip(board.spread, parts, strict=True))


@given(groups())
def test_joined_topics_are_aligned(
    group: tuple[list[Member], list[LaneTopic], dict[Lane, float]],
) -> None:
    """The same lane of topics of one co-group, with the same subscribers, is at one member."""
    known, described, loads = group
    plan = plan_sticky(known, described, loads)
    at = {lane: member_id for member_id, lanes in plan.items() for lane in lanes}
    for one in described:
        for other in described:
            joined = one.co_group is not None and one.co_group == other.co_group
            same_counts = (one.partition_count, one.lane_count) == (
                other.partition_count,
                other.lane_count,
            )
            if joined and same_counts and _subscribers(known, one) == _subscribers(known, other):
                for index in range(one.index_count):
                    assert at.get((one.name, index)) == at.get((other.name, index))


def _subscribers(group: list[Member], topic: LaneTopic) -> set[str]:
    return {member.member_id for member in group if topic.name in member.topics}


@given(
    history=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    partitions=st.integers(1, 4),
    lanes=st.integers(1, 16),
    chance=st.randoms(use_true_random=False),
)
def test_the_stated_bound_of_balance_holds(
    history: list[int], partitions: int, lanes: int, chance: random.Random
) -> None:
    """Over any history of sizes: at most 1.10 * max(mean, heaviest), or twice the lightest."""
    topic = LaneTopic(name="a", partition_count=partitions, lane_count=lanes)
    group: list[Member] = []
    for count in history:
        loads = {("a", i): chance.paretovariate(1.1) for i in range(topic.index_count)}
        group = [*group, *same_topic_group(12, first=len(group))][:count]
        plan = plan_sticky(group, [topic], loads)
        group = after(plan, group)

        weights = weigh_lanes([topic], loads)
        held = [sum(weights[lane] for lane in lanes_of) for lanes_of in plan.values()]
        ideal = max(sum(held) / count, *weights.values())
        assert max(held) <= max(1.10 * ideal, 2 * min(held))
        assert max(held) <= max(2 * sum(held) / count, 1.10 * max(weights.values()))


@given(count=st.integers(1, 10), lanes=st.integers(1, 40), chance=st.randoms(use_true_random=False))
def test_a_first_plan_is_near_the_naive_twin(count: int, lanes: int, chance: random.Random) -> None:
    """The busiest member has at most 1.15 times what heaviest-first gives (Graham's LPT)."""
    topic = LaneTopic(name="a", partition_count=1, lane_count=lanes)
    loads = {("a", i): chance.paretovariate(1.1) for i in range(lanes)}
    weights = weigh_lanes([topic], loads)

    plan = plan_sticky(same_topic_group(count), [topic], loads)

    naive = plan_heaviest_first([m.member_id for m in same_topic_group(count)], weights)
    busiest = [max(sum(weights[x] for x in v) for v in p.values()) for p in (plan, naive)]
    assert busiest[0] <= 1.15 * busiest[1]


@given(
    partitions=st.integers(1, 6),
    lanes=st.integers(1, 20),
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30)),
)
def test_the_moves_bound_holds_for_even_lanes(
    partitions: int, lanes: int, sizes: tuple[int, int]
) -> None:
    """Members join or leave: no more moves than members have above the rounded-down mean."""
    topic = LaneTopic(name="a", partition_count=partitions, lane_count=lanes)
    before = after(plan_sticky(same_topic_group(sizes[0]), [topic], {}), same_topic_group(sizes[0]))
    group = [*before, *same_topic_group(30, first=sizes[0])][: sizes[1]]

    plan = plan_sticky(group, [topic], {})

    floor = topic.index_count // len(group)
    assert count_moves(group, plan) <= sum(max(0, len(m.owned) - floor) for m in group)
    if sizes[1] < sizes[0]:
        assert count_moves(group, plan) <= topic.index_count % len(group)
    assert min(len(held) for held in plan.values()) >= int(0.8 * topic.index_count / len(group))


@given(count=st.integers(2, 25), lanes=st.integers(1, 32), chance=st.randoms(use_true_random=False))
def test_removing_members_one_by_one_never_piles_up(
    count: int, lanes: int, chance: random.Random
) -> None:
    """No member is above twice the mean, but by one lane that cannot be cut (pulsar#6791)."""
    topic = LaneTopic(name="a", partition_count=3, lane_count=lanes)
    loads = {("a", i): chance.paretovariate(1.1) for i in range(topic.index_count)}
    weights = weigh_lanes([topic], loads)
    group = same_topic_group(count)
    while group:
        plan = plan_sticky(group, [topic], loads)
        held = [sum(weights[lane] for lane in lanes_of) for lanes_of in plan.values()]
        assert max(held) <= max(2 * sum(held) / len(held), 1.10 * max(weights.values()))
        group = after(plan, group)
        group.pop(chance.randrange(len(group)))


@given(groups(), st.data())
def test_two_steps_hand_over_without_two_readers(
    group: tuple[list[Member], list[LaneTopic], dict[Lane, float]], data: st.DataObject
) -> None:
    """In the first step no lane is at one member while another reads it; the second completes."""
    known, described, loads = group
    started = after(plan_sticky(known, described, loads), known, generation_id=1)
    joined = [*started, Member(member_id="new", topics=frozenset(NAMES))]
    present = data.draw(st.lists(st.sampled_from(joined), min_size=1, unique=True))
    target = plan_sticky(present, described, loads)

    step = first_step(target, present, described)

    withheld = find_withheld(target, step)
    assert find_faults(step, present, described, withheld=withheld) == []
    for member in present:
        for other in present:
            if other is not member:
                assert not set(step[member.member_id]) & set(other.owned)
        kept = set(member.owned) & set(target[member.member_id])
        assert kept <= set(step[member.member_id])
    assert first_step(target, after(step, present), described) == target


@given(STRATEGIES, members(), st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5)), st.data())
def test_ranges_of_a_partition_cover_the_hash_space_once(
    strategy: Strategy, group: list[Member], partitions: dict[str, int], data: st.DataObject
) -> None:
    """For both strategies: from 0 to 2^63-1 without gap or overlap, at subscribers only."""
    allowed = {topic: data.draw(st.booleans()) for topic in partitions}

    plan = assign_key_ranges(strategy, partitions, allowed, group, coordinator_allows_ic=True)

    by_id = {member.member_id: member for member in group}
    cut: dict[tuple[str, int], list[Any]] = {}
    for topic, held in plan.items():
        for member_id, parts in held.items():
            assert topic in by_id[member_id].topics
            for partition, key_range in parts:
                cut.setdefault((topic, partition), []).append(key_range)
                assert by_id[member_id].shares or (key_range.lo, key_range.hi) == (0, HASH_MAX)
    subscribed = {topic for member in group for topic in member.topics}
    assert set(cut) == {(t, p) for t, n in partitions.items() if t in subscribed for p in range(n)}
    for ranges in cut.values():
        ranges.sort()
        assert [r.lo for r in ranges] == [0, *(r.hi + 1 for r in ranges[:-1])]
        assert ranges[-1].hi == HASH_MAX


LANES = st.lists(st.tuples(st.text(max_size=5), st.integers(-(2**31), 2**31 - 1)), max_size=8).map(
    lambda lanes: tuple(sorted(lanes, key=lambda lane: lane[0]))
)


@given(
    st.builds(
        Subscription,
        version=st.just(3),
        topics=st.lists(st.text(max_size=5), max_size=4).map(tuple),
        user_data=st.binary(max_size=8),
        owned=LANES,
        generation_id=st.integers(-1, 2**31 - 1),
        rack=st.none() | st.text(max_size=5),
    )
)
def test_subscriptions_come_back_as_written(said: Subscription) -> None:
    """Decoding undoes encoding, for subscriptions and assignments."""
    assert read_subscription(write_subscription(said)) == said
    assert read_assignment(write_assignment(said.owned, version=1)).lanes == said.owned


@given(st.binary(max_size=80))
def test_hostile_bytes_are_refused_or_read(data: bytes) -> None:
    """Any bytes give a value or FrameInvalid, and never more lanes than the bytes can hold."""
    for read in (read_subscription, read_assignment):
        try:
            value: Any = read(data)
        except FrameInvalid:
            continue
        lanes = value.owned if isinstance(value, Subscription) else value.lanes
        assert len(lanes) * 4 <= len(data)


@given(groups())
def test_lanes_come_back_from_assignments(
    group: tuple[list[Member], list[LaneTopic], dict[Lane, float]],
) -> None:
    """What a plan gives can be written as assignments and is read back as the same lanes."""
    plan = plan_sticky(*group)

    sent = {m: write_assignment(held, version=1) for m, held in plan.items()}

    assert {m: read_assignment(data).lanes for m, data in sent.items()} == plan
