"""assignor/sticky.py and its steps: the examples behind each thing that a plan wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from keylane.assignor.level import find_share
from keylane.assignor.model import Lane, LaneTopic, Member, Plan
from keylane.assignor.sticky import LANE_WEIGHT, MEAN_WEIGHT, join_rates, plan_sticky, weigh_lanes


def topic(
    name: str = "t", partitions: int = 3, lanes: int = 8, co_group: str | None = None
) -> LaneTopic:
    return LaneTopic(name=name, partition_count=partitions, lane_count=lanes, co_group=co_group)


def group(count: int, *topics: str, shares: bool = True, prefix: str = "m") -> list[Member]:
    return [
        Member(member_id=f"{prefix}{n:02}", topics=frozenset(topics or ("t",)), shares=shares)
        for n in range(count)
    ]


def after(plan: Plan, members: list[Member]) -> list[Member]:
    return [replace(member, owned=plan.get(member.member_id, ())) for member in members]


def sizes(plan: Plan) -> list[int]:
    return [len(plan[member_id]) for member_id in sorted(plan)]


def partitions_of(lanes: tuple[Lane, ...], count: int = 3) -> set[int]:
    return {index % count for _, index in lanes}


def load_of(plan: Plan, loads: Mapping[Lane, float]) -> dict[str, float]:
    return {member_id: sum(loads[lane] for lane in lanes) for member_id, lanes in plan.items()}


def test_as_many_members_as_partitions_get_one_each() -> None:
    """Three members on three partitions share none."""
    plan = plan_sticky(group(3), [topic()], {})

    assert [len(partitions_of(lanes)) for lanes in plan.values()] == [1, 1, 1]
    assert sizes(plan) == [8, 8, 8]


def test_members_get_few_partitions() -> None:
    """Six members on three partitions: two on each, no member on two."""
    plan = plan_sticky(group(6), [topic()], {})

    assert sizes(plan) == [4] * 6
    assert all(len(partitions_of(lanes)) == 1 for lanes in plan.values())


def test_lanes_of_even_weight_are_dealt_within_one() -> None:
    """24 lanes for seven members: three or four each."""
    assert sorted(sizes(plan_sticky(group(7), [topic()], {}))) == [3, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("counts", [(1, 7, 2, 12), (12, 1, 12), (5, 6, 7, 8)])
def test_a_group_changes_its_size(counts: tuple[int, ...]) -> None:
    """Each member has work at every size, and the shares differ little."""
    members: list[Member] = []
    for count in counts:
        members = (members + group(12)[len(members) :])[:count]
        plan = plan_sticky(members, [topic()], {})
        members = after(plan, members)

        assert max(sizes(plan)) <= max(1.10 * 24 / count, 24 // count + 1)
        assert min(sizes(plan)) >= 0.8 * (24 // count)


def test_a_leaver_moves_only_its_own_lanes() -> None:
    """The five that stay keep everything they had."""
    members = group(6)
    plan = plan_sticky(members, [topic()], {})

    again = plan_sticky(after(plan, members)[1:], [topic()], {})

    for member in members[1:]:
        assert set(plan[member.member_id]) <= set(again[member.member_id])


def test_a_newcomer_gets_its_share_and_no_more_moves() -> None:
    """Eight of 24 lanes move from four members to six."""
    before = after(plan_sticky(group(4), [topic()], {}), group(4))

    plan = plan_sticky([*before, *group(6)[4:]], [topic()], {})

    moved = sum(len(set(m.owned) - set(plan[m.member_id])) for m in before)
    assert sizes(plan) == [4] * 6
    assert moved == 8


def test_a_hot_lane_is_alone() -> None:
    """A lane with half of the load is all that its member has."""
    loads: dict[Lane, float] = {("t", index): 1.0 for index in range(24)} | {("t", 5): 23.0}

    plan = plan_sticky(group(4), [topic()], loads)

    owner = next(member_id for member_id, lanes in plan.items() if ("t", 5) in lanes)
    assert plan[owner] == (("t", 5),)
    assert sorted(load_of(plan, loads).values()) == pytest.approx(
        [23 / 3, 23 / 3, 23 / 3, 23], abs=1
    )


def test_small_changes_of_load_move_nothing() -> None:
    """Rates that waver by five percent are no reason to move a lane."""
    loads: dict[Lane, float] = {("t", index): 100.0 for index in range(24)}
    members = after(plan_sticky(group(4), [topic()], loads), group(4))
    wavering = {lane: 100.0 + (5 if lane[1] % 3 else -5) for lane in loads}

    plan = plan_sticky(members, [topic()], wavering)

    assert plan == {member.member_id: member.owned for member in members}


def test_a_lane_that_grows_hot_sends_its_neighbours_away() -> None:
    """The hot lane stays at its member; the others of that member go to where there is room."""
    members = after(plan_sticky(group(4), [topic()], {}), group(4))
    hot = members[0].owned[0]
    loads: dict[Lane, float] = {("t", index): 1.0 for index in range(24)} | {hot: 12.0}

    plan = plan_sticky(members, [topic()], loads)

    assert hot in plan["m00"]
    assert max(load_of(plan, loads).values()) <= 1.10 * 12
    assert sum(len(set(m.owned) - set(plan[m.member_id])) for m in members) <= 5


def test_a_swap_helps_where_no_move_does() -> None:
    """6+5 beside 2+3 on two members: only an exchange makes 8 and 8."""
    one_each = topic(partitions=1, lanes=4)
    loads: dict[Lane, float] = {("t", 0): 6, ("t", 1): 5, ("t", 2): 2, ("t", 3): 3}
    members = [
        replace(group(2)[0], owned=(("t", 0), ("t", 1))),
        replace(group(2)[1], owned=(("t", 2), ("t", 3))),
    ]

    plan = plan_sticky(members, [one_each], loads)

    assert sorted(load_of(plan, loads).values()) == [8, 8]


def test_joined_topics_go_together() -> None:
    """The same key range of both topics is at the same member, whatever their loads."""
    topics = [topic("a", co_group="joined"), topic("b", co_group="joined")]
    loads: dict[Lane, float] = {("a", index): float(index) for index in range(24)}

    plan = plan_sticky(group(5, "a", "b"), topics, loads)

    for lanes in plan.values():
        assert {i for name, i in lanes if name == "a"} == {i for name, i in lanes if name == "b"}


def test_topics_of_other_counts_are_not_joined() -> None:
    """Eight lanes and four lanes cannot be aligned; each is dealt out by itself."""
    topics = [topic("a", co_group="joined"), topic("b", lanes=4, co_group="joined")]

    plan = plan_sticky(group(36, "a", "b"), topics, {})

    assert sizes(plan) == [1] * 36


def test_a_joined_lane_stays_where_most_of_it_is() -> None:
    """When two topics become joined, the heavier lane does not move."""
    topics = [topic(name, 1, 2, co_group="joined") for name in "ab"]
    loads: dict[Lane, float] = {("a", 0): 1, ("a", 1): 9, ("b", 0): 9, ("b", 1): 1}
    members = [
        replace(group(2, "a", "b")[0], owned=(("a", 0), ("a", 1))),
        replace(group(2, "a", "b")[1], owned=(("b", 0), ("b", 1))),
    ]

    plan = plan_sticky(members, topics, loads)

    assert plan == {"m00": (("a", 1), ("b", 1)), "m01": (("a", 0), ("b", 0))}


def test_members_with_other_topics_get_only_theirs() -> None:
    """A member that subscribes to the second topic alone does more of it."""
    members = [*group(2, "a", "b"), *group(2, "b", prefix="n")]

    plan = plan_sticky(members, [topic("a"), topic("b")], {})

    assert sizes(plan) == [12, 12, 12, 12]
    assert {name for lanes in (plan["n00"], plan["n01"]) for name, _ in lanes} == {"b"}


def test_a_member_that_does_not_share_gets_a_whole_partition() -> None:
    """It has one partition of three, the four others share the rest."""
    members = [*group(4), *group(1, shares=False, prefix="n")]

    plan = plan_sticky(members, [topic()], {})

    assert sizes(plan) == [4, 4, 4, 4, 8]
    assert len(partitions_of(plan["n00"])) == 1


def test_one_partition_stays_for_members_that_share() -> None:
    """Two of four that do not share get a partition; the one that shares has the third."""
    members = [*group(1), *group(4, shares=False, prefix="n")]

    plan = plan_sticky(members, [topic()], {})

    assert sorted(sizes(plan)) == [0, 0, 8, 8, 8]
    assert len(plan["m00"]) == 8


def test_a_group_that_does_not_share_gets_whole_partitions() -> None:
    """The plan is a stock assignor's, and some get nothing when there are too many."""
    plan = plan_sticky(group(4, shares=False), [topic()], {})

    assert sorted(sizes(plan)) == [0, 8, 8, 8]
    assert all(len(partitions_of(lanes)) <= 1 for lanes in plan.values())


def test_a_member_keeps_its_whole_partition() -> None:
    """Its partition stays the same when another member joins."""
    members = [*group(3), *group(1, shares=False, prefix="n")]
    plan = plan_sticky(members, [topic()], {})

    again = plan_sticky([*after(plan, members), *group(4)[3:]], [topic()], {})

    assert again["n00"] == plan["n00"]


def test_members_near_a_partition_get_it() -> None:
    """Racks known of both sides: each member reads a partition of its rack."""
    racks = tuple(frozenset({rack}) for rack in ("r0", "r1", "r2"))
    near = replace(topic(), partition_racks=racks)
    members = [replace(m, rack=f"r{(n + 1) % 3}") for n, m in enumerate(group(6))]

    plan = plan_sticky(members, [near], {})

    for member in members:
        assert {f"r{p}" for p in partitions_of(plan[member.member_id])} == {member.rack}


def test_a_rack_without_members_is_no_hindrance() -> None:
    """A partition whose rack has no member goes to any."""
    far = replace(topic(), partition_racks=(frozenset({"elsewhere"}),) * 3)

    assert sizes(plan_sticky(group(3), [far], {})) == [8, 8, 8]


def test_a_static_member_that_comes_back_has_its_place() -> None:
    """Instance ids alone decide the places where nothing is owned."""
    first = [replace(m, instance_id=f"i{n}") for n, m in enumerate(group(3))]
    second = [replace(m, member_id=f"other-{9 - n}") for n, m in enumerate(first)]

    plans = [plan_sticky(members, [topic()], {}) for members in (first, second)]

    assert list(plans[0].values()) == list(plans[1].values())


def test_nothing_to_do_is_fine() -> None:
    """No members, no topics, or members of unknown topics: plans without lanes."""
    assert plan_sticky([], [topic()], {}) == {}
    assert plan_sticky(group(2), [], {}) == {"m00": (), "m01": ()}
    assert plan_sticky(group(1, "other"), [topic()], {}) == {"m00": ()}


def test_claims_of_what_is_not_there_are_ignored() -> None:
    """Lanes of a topic that was deleted, beyond the count, or below zero."""
    claims: tuple[Lane, ...] = (("gone", 0), ("t", 24), ("t", -1), ("t", 3))
    members = [replace(group(2)[0], owned=claims), group(2)[1]]

    plan = plan_sticky(members, [topic()], {})

    assert ("t", 3) in plan["m00"]
    assert sizes(plan) == [12, 12]


@pytest.mark.parametrize("what", ["members", "topics"])
def test_twins_are_refused(what: str) -> None:
    """Two members of one id, two topics of one name."""
    twice = 2 if what == "members" else 1
    topics = [topic()] if what == "members" else [topic(), topic()]

    with pytest.raises(ValueError, match="two"):
        plan_sticky(group(1) * twice, topics, {})


def test_unknown_rates_are_the_mean_of_their_topic() -> None:
    """A topic without any rate takes the mean of all."""
    topics = [topic("a", 1, 4), topic("b", 1, 2)]
    loads = {("a", 0): 10.0, ("a", 1): 30.0, ("a", 2): float("nan"), ("a", 3): -1.0}

    weights = weigh_lanes(topics, loads)

    mean = LANE_WEIGHT + MEAN_WEIGHT
    assert weights["a", 0] == LANE_WEIGHT + MEAN_WEIGHT // 2
    assert [weights[lane] for lane in (("a", 2), ("a", 3), ("b", 0), ("b", 1))] == [mean] * 4


def test_idle_lanes_weigh_a_little() -> None:
    """Without a byte anywhere all lanes are equal; beside busy ones they still count."""
    assert set(weigh_lanes([topic()], {("t", 0): 0.0}).values()) == {MEAN_WEIGHT}
    assert weigh_lanes([topic(lanes=1, partitions=2)], {("t", 0): 0.0, ("t", 1): 5.0}) == {
        ("t", 0): LANE_WEIGHT,
        ("t", 1): LANE_WEIGHT + 2 * MEAN_WEIGHT,
    }


@pytest.mark.parametrize(
    ("weights", "count", "share"),
    [([4, 4, 4], 3, 4), ([10, 1, 1], 2, 2), ([10, 8, 3, 3], 3, 6), ([5], 4, 0), ([], 2, 0)],
)
def test_the_share_leaves_heavy_units_out(weights: list[int], count: int, share: float) -> None:
    """What a unit above the share has is no work that others could take."""
    assert find_share(weights, count) == share


def test_half_of_a_load_are_bytes_and_half_are_records() -> None:
    """Both halves weigh the same in sum; lanes that one measure lacks are unknown."""
    a, b, c = ("t", 0), ("t", 1), ("u", 0)

    loads = join_rates({a: 900.0, b: 100.0, c: 5.0}, {a: 1.0, b: 9.0})

    assert loads == {a: 500.0, b: 500.0}
    assert join_rates({a: 7.0}, {a: 0.0}) == {a: 7.0}


def test_lanes_of_a_member_that_left_even_out_the_others() -> None:
    """No lane that stays moves for it; where they fit best at first, it would be 130 and 110."""
    topic = LaneTopic(name="t", partition_count=1, lane_count=5)
    weights = [80.0, 60.0, 40.0, 30.0, 30.0]
    loads = {("t", index): weight for index, weight in enumerate(weights)}
    topics = frozenset({"t"})
    stay = [
        Member(member_id="a", topics=topics, owned=(("t", 0),), generation_id=1),
        Member(member_id="b", topics=topics, owned=(("t", 1),), generation_id=1),
    ]

    plan = plan_sticky(stay, [topic], loads)

    carried = [sum(loads[lane] for lane in plan[name]) for name in ("a", "b")]
    assert carried == [120.0, 120.0]
    assert ("t", 0) in plan["a"]
    assert ("t", 1) in plan["b"]
