"""Changes of a topic's lane count: the operators' part, and the judgement.

Source: docs/operations.md, "Change the configuration"; docs/guarantees.md, "Another number of
lanes".

Counts are chosen so that the lanes of one layout are unions of the other's. So all can be judged by
the lanes of the finest one: what is said of a lane is said of each of its parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.long.chaos_history import Answer, Commit, Cut, Delivery, Event, Place
from tests.long.commit_floor import CommitFloor
from tests.simulation.fetching import parts_of

if TYPE_CHECKING:
    from tests.simulation.member import Member
    from tests.simulation.scenario import Fault, TopicPlan
    from tests.simulation.stage import Stage

LOOK_S = 0.1
PATIENCE_S = 10.0
"""Seconds until a client that has not stopped is killed."""
STARTED_S = 5.0
"""Seconds until members have joined, and fetch."""


def in_parts(
    event: Event, partitions: int, parts: int, place_of: Callable[[Delivery], Place]
) -> list[Event]:
    """Return an event of a lane as events of its parts; a record is of one of them."""
    if parts == 1:
        return [event]
    places = parts_of(event.place, partitions, parts)
    if isinstance(event, Delivery):
        own = place_of(event)
        # One of another lane stays one.
        return [replace(event, place=own if own in places else places[0])]
    return [replace(event, place=place) for place in places]


class Joins:
    """Lanes that became one, of all topics."""

    def __init__(self) -> None:
        self._joined: dict[str, tuple[list[list[Place]], float]] = {}
        """Parts of each lane, and the time from which they are one, by topic."""

    def note(self, topic: TopicPlan, lanes: int, now_s: float) -> None:
        """A topic has fewer lanes now than its finest layout."""
        count, parts = topic.partitions, topic.lanes_most // lanes
        places = (Place(topic.name, index) for index in range(lanes * count))
        self._joined[topic.name] = [parts_of(place, count, parts) for place in places], now_s

    def commits(
        self,
        topic: TopicPlan,
        events: Sequence[Event],
        cuts: Mapping[tuple[str, int], Sequence[Cut]],
    ) -> list[Commit]:
        """Commits that set the parts of each lane to where the slowest of them stood.

        Whether each has come about is not known: where it stood is not.
        """
        lanes, at_s = self._joined.get(topic.name, ([], 0.0))
        commits: dict[Place, list[Commit]] = defaultdict(list)
        for event in events:
            if isinstance(event, Commit):
                commits[event.place].append(event)
        found = []
        for parts in lanes:
            of_log = cuts.get((topic.name, parts[0].lane % topic.partitions), ())
            lowest = min(
                CommitFloor(commits[part], of_log).floor(Answer("", part, -1, at_s, at_s)).offset
                for part in parts
            )
            found += [Commit("operator", part, lowest, -1, at_s) for part in parts]
        return found

    def kept(self, answer: Answer, commits: Mapping[Place, Sequence[Commit]]) -> int:
        """How far a part may stand beyond what members have committed of its lane; -1: it may not.

        A commit between the positions of a lane's parts leaves those ahead, see
        `OffsetState.commit_keys`; one below all of them takes all back. commits: by part.
        """
        lanes, at_s = self._joined.get(answer.place.topic, ([], 0.0))
        parts = next((each for each in lanes if answer.place in each), [])
        if not parts or answer.asked_s < at_s:
            return -1
        said = {
            part: CommitFloor(commits.get(part, ())).stands(Answer("", part, -1, at_s, at_s))
            for part in parts
        }
        own, lowest = said[answer.place], min(said.values())
        for each in sorted(commits.get(answer.place, ()), key=lambda each: each.asked_s):
            is_over = each.is_acknowledged and each.answered_s <= answer.asked_s
            if not is_over or each.asked_s <= at_s:
                continue
            # Of no member: it means all parts.
            if each.generation < 0 or each.offset < lowest or each.offset >= own:
                return -1
            lowest = max(lowest, each.offset)
        return own


def change_lanes(stage: Stage, fault: Fault) -> None:
    """Stop a topic's groups, configure other lanes, and start them; once in a run."""
    topic = next((each for each in stage.scenario.topics if each.lanes_later), None)
    if topic is None or stage.lanes[topic.name] == topic.lanes_later:
        return
    members = [each for each in stage.members if each.habits.topic == topic.name]
    groups = {each.habits.group for each in members}
    if any(each.is_kept_out for each in members) or groups & stage.groups_changed:
        return
    stage.groups_changed |= groups
    for each in members:
        each.is_kept_out = True
        each.stop()
    kill_s = stage.world.now_s + PATIENCE_S * fault.amount

    def look() -> None:
        known = [stage.cluster.group(name) for name in groups]
        if stage.world.now_s > kill_s:
            for each in members:
                each.kill()
        is_loading = any(each.twin.is_loading for each in known)
        if is_loading or any(each.has_members for each in known) or not _have_ended(members):
            stage.world.after(LOOK_S, look)
        else:
            _change(stage, topic, members)
            stage.groups_changed -= groups

    look()


def _have_ended(members: Sequence[Member]) -> bool:
    return all(each.has_ended for each in members)


def _change(stage: Stage, topic: TopicPlan, members: Sequence[Member]) -> None:
    """All clients are gone. Under the topic's own name nodes have to be started anew."""
    stage.world.report(f"lanes of {topic.name} are {topic.lanes_later} now")
    stage.set_lanes(topic, topic.lanes_later)
    plans = {plan.name: plan for plan in stage.scenario.groups if plan.topic == topic.name}
    for each in members:
        each.kill()
        each.habits = replace(
            each.habits,
            lane_topic=plans[each.habits.group].lane_topic(topic.lanes_later),
            parts=topic.lanes_most // topic.lanes_later,
        )
        each.is_kept_out = False
        stage.world.after(LOOK_S, each.start)
    if not all(plan.by_lane_name for plan in plans.values()):
        stage.kill(*stage.node_hosts)
    slowest_s = max((plan.commit_s for plan in plans.values()), default=0.0)
    stage.hold(STARTED_S + 4 * slowest_s)
