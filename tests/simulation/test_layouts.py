"""Lanes that become more or fewer are judged by the lanes of the finest layout."""

from __future__ import annotations

import pytest

from keylane.keyrange.lane import LaneLayout
from tests.long.chaos_history import Answer, Commit, Delivery, Event, Fetched, Place
from tests.simulation.layouts import Joins, in_parts
from tests.simulation.run import play
from tests.simulation.scenario import LANES_LATER, Scenario, TopicPlan, draw

TOPIC = TopicPlan("t0", 2, 4, is_safe=True, keys=1, batches_per_s=1.0, lanes_later=2)
"""4 lanes of 2 partitions, which become 2: lanes 1 and 3 of partition 0 are lane 0's parts."""


def place(lane: int) -> Place:
    return Place("t0", lane)


@pytest.mark.parametrize("before", LANES_LATER)
def test_lanes_of_one_layout_are_unions_of_the_other_s(before: int) -> None:
    """Each lane of a layout is a union of parts, so that its events hold for each part."""
    layouts = [
        set(LaneLayout(1, lanes).key_split(0).limits.tolist())
        for lanes in (before, LANES_LATER[before])
    ]
    assert layouts[0] < layouts[1] or layouts[1] < layouts[0]


def test_an_event_is_one_of_each_part() -> None:
    """Lane 1 of partition 1 is index 3; its parts are lanes 2 and 3, at 5 and 7."""
    event = Fetched("m1", place(3), 40, 1.0)

    found = in_parts(event, 2, 2, lambda _: place(0))

    assert found == [Fetched("m1", place(5), 40, 1.0), Fetched("m1", place(7), 40, 1.0)]


@pytest.mark.parametrize(("own", "said"), [(7, 7), (5, 5), (1, 5)])
def test_a_record_is_of_one_part(own: int, said: int) -> None:
    """One of another lane (index 1) is still said to be where it does not belong."""
    event = Delivery("m1", place(3), 40, "k", 1, 1.0)

    (found,) = in_parts(event, 2, 2, lambda _: place(own))

    assert found == Delivery("m1", place(said), 40, "k", 1, 1.0)


def test_lanes_that_become_one_stand_where_the_slowest_stood() -> None:
    """10 and 20 of partition 0; in partition 1 one part never committed."""
    events: list[Event] = [
        Commit("m1", place(lane), offset, 1, 1.0, 1.1)
        for lane, offset in ((0, 10), (2, 20), (1, 5))
    ]
    joins = Joins()
    joins.note(TOPIC, 2, now_s=3.0)

    found = {each.place.lane: each for each in joins.commits(TOPIC, events, {})}

    assert {lane: each.offset for lane, each in found.items() if lane % 2 == 0} == {
        0: 10, 2: 10, 4: -1, 6: -1,
    }  # fmt: skip
    assert {lane: each.offset for lane, each in found.items() if lane % 2} == {
        1: -1, 3: -1, 5: -1, 7: -1,
    }  # fmt: skip
    assert not any(each.is_acknowledged for each in found.values())


def changes(scenario: Scenario, *, by_lane_name: bool) -> bool:
    topic = next((each for each in scenario.topics if each.lanes_later), None)
    return topic is not None and by_lane_name == any(
        plan.by_lane_name for plan in scenario.groups if plan.topic == topic.name
    )


@pytest.mark.parametrize("by_lane_name", [False, True])
def test_lanes_are_changed_in_some_schedules(by_lane_name: bool) -> None:
    """Under the topic's own name and under lane names; groups read all the same."""
    seed = next(seed for seed in range(200) if changes(draw(seed), by_lane_name=by_lane_name))

    outcome = play(draw(seed))

    assert any("lanes of t" in line for line in outcome.story)
    assert not outcome.breaches


@pytest.mark.parametrize(
    ("offsets", "first_generation", "kept"),
    [
        ([], 2, 45),
        ([44], 2, 45),
        ([44, 43], 2, -1),
        ([46, 44], 2, -1),
        ([10], 2, -1),
        ([44], -1, -1),
    ],
)
def test_a_part_ahead_stays_as_long_as_the_lane_is_committed_between_its_parts(
    offsets: list[int], first_generation: int, kept: int
) -> None:
    """Parts stand at 20 and 45: a commit below both, beyond both, or of no member means both."""
    joins = Joins()
    joins.note(TOPIC, 2, 10.0)
    commits = {
        place(lane): [
            Commit("m", place(lane), before, 1, 5.0, 5.1),
            *(
                Commit("m", place(lane), offset, first_generation, 11.0 + at, 11.1 + at)
                for at, offset in enumerate(offsets)
            ),
        ]
        for lane, before in ((0, 20), (2, 45))
    }

    assert joins.kept(Answer("lag", place(2), 51, 20.0, 20.1), commits) == kept
    assert joins.kept(Answer("lag", place(2), 51, 9.0, 9.1), commits) == -1, "not joined yet"
