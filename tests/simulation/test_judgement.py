"""Verdicts of the simulation's judge on Kafka's own offsets that go back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from keylane.offsets.txn_metadata import said_note
from keylane.offsets.values import OwnerEpoch, Pusher
from tests.long import chaos_judge
from tests.long.chaos_history import Answer, Commit
from tests.simulation.broker import Broker
from tests.simulation.broker_groups import write_late
from tests.simulation.cluster import Cluster, Committed
from tests.simulation.judgement import Judgement
from tests.simulation.scenario import GroupPlan, Scenario, TopicPlan
from tests.simulation.waits import Waits, between
from tests.simulation.world import World

PLACE = "g0", "t0", 0


@pytest.fixture(name="cluster")
def fixture_cluster() -> Cluster:
    """A group on a topic of one partition."""
    world = World(1)
    cluster = Cluster(world, 3)
    cluster.create("t0", 1)
    return cluster


def judge_of(cluster: Cluster) -> Judgement:
    topic = TopicPlan("t0", 1, 2, is_safe=True, keys=1, batches_per_s=1.0)
    group = GroupPlan("g0", "t0", 1, 1.0, 0.0, is_committed=False, by_lane_name=False)
    scenario = Scenario(1, 0, 3, (topic,), (group,), ())
    return Judgement(cluster.world, cluster, scenario, Waits(["kafka1"]))


@pytest.mark.parametrize(
    ("is_failed", "offset", "is_back"),
    [(False, 7, True), (True, 7, False), (True, 4, True), (False, 9, False)],
)
def test_an_offset_that_was_answered_as_failed_may_be_gone_again(
    cluster: Cluster, is_failed: bool, offset: int, is_back: bool
) -> None:
    """The offset before it counts all the same."""
    judge = judge_of(cluster)
    cluster.commit(*PLACE, Committed(5))
    cluster.commit(*PLACE, Committed(9))
    if is_failed:
        cluster.unacknowledged.add(PLACE)

    cluster.commit(*PLACE, Committed(offset))

    assert bool(judge._kafka.back) is is_back
    cluster.commit(*PLACE, Committed(offset - 1))
    assert len(judge._kafka.back) == is_back + 1, "the next one is judged by that"


@pytest.mark.parametrize(("epoch", "is_back"), [(1, False), (2, True), (3, True)])
def test_a_push_of_a_node_that_was_replaced_may_come_late(
    cluster: Cluster, epoch: int, is_back: bool
) -> None:
    """Pushes of the next owner count all the same: none of them may be gone."""
    judge = judge_of(cluster)
    cluster.commit(*PLACE, pushed(cluster, 5, epoch=1))
    cluster.commit(*PLACE, pushed(cluster, 9, epoch=2))

    cluster.commit(*PLACE, pushed(cluster, 7, epoch=epoch))

    assert bool(judge._kafka.back) is is_back
    cluster.commit(*PLACE, pushed(cluster, 8, epoch=2))
    assert len(judge._kafka.back) == 1


@pytest.mark.parametrize(
    ("trouble", "keeps"),
    [
        ("g0m0.1", True),
        ("127.0.1.1", True),
        (between("127.0.1.1", "g0m0.1"), True),
        (between("127.0.1.1", "kafka1"), False),
        ("kafka1", False),
    ],
)
def test_answers_of_a_log_that_was_cut_lie_at_clients_and_nodes_that_hang(
    cluster: Cluster, trouble: str, keeps: bool
) -> None:
    """A node that goes on reads what its broker has sent it before, as a client does."""
    judge = judge_of(cluster)
    judge._waits.troubles.note(trouble, 0.0, 20.0)

    judge.cut(cluster.topics["t0"].partitions[0])

    (cut,) = judge._cuts["t0", 0]
    assert (cut.end_s > 20.0) is keeps


@pytest.mark.parametrize(("handed", "is_passed"), [([0, 1], False), ([0], True), ([1], True)])
def test_a_lane_whose_next_record_was_passed_holds_the_stable_offset(
    cluster: Cluster, handed: list[int], is_passed: bool
) -> None:
    """Whatever other lanes were handed before that record."""
    judge, partition = judge_of(cluster), cluster.topics["t0"].partitions[0]
    keys = {judge._lane("t0", key): key for key in map(str, range(50))}
    judge.cut(partition)
    for number, key in enumerate(keys.values()):
        judge.wrote(partition, 5 + number, key, number)
    got: list[Any] = [SimpleNamespace(number=number) for number in handed]
    member: Any = SimpleNamespace(habits=SimpleNamespace(group="g0"), handed=[got])

    assert judge._is_passed(judge._scenario.groups[0], partition, 5, [member]) is is_passed


@pytest.mark.parametrize(
    ("has_failed", "epochs", "is_back"),
    [(True, (1, 2), False), (True, (1, 1), True), (True, (1, 1, 2), True), (False, (1, 2), True)],
)
def test_a_push_that_an_earlier_one_of_its_offset_is_like_may_be_gone_with_the_next_owner(
    cluster: Cluster, has_failed: bool, epochs: tuple[int, ...], is_back: bool
) -> None:
    """The next owner takes it for the earlier one, come late. Once answered it counts."""
    judge = judge_of(cluster)
    cluster.commit(*PLACE, pushed(cluster, 5, epoch=1))
    if has_failed:
        write_late(Broker(cluster, 1), "g0", {PLACE[1:]: pushed(cluster, 9, epoch=1)})
    cluster.commit(*PLACE, pushed(cluster, 5, epoch=1))

    *answered, last = epochs
    for epoch in answered:
        cluster.commit(*PLACE, pushed(cluster, 9, epoch=epoch))
    cluster.commit(*PLACE, pushed(cluster, 5, epoch=last))

    assert bool(judge._kafka.back) is is_back


def test_a_group_was_handed_a_lane_as_far_as_the_log_of_now_goes(cluster: Cluster) -> None:
    """An admin sets a lane back to there at most: a log that was cut has other records behind."""
    judge, partition = judge_of(cluster), cluster.topics["t0"].partitions[0]
    plan = judge._scenario.groups[0]
    for offset in range(3):
        judge.wrote(partition, offset, "key", offset)
    got: list[Any] = [SimpleNamespace(number=number) for number in range(3)]
    member: Any = SimpleNamespace(habits=SimpleNamespace(group="g0"), handed=[got])
    place = judge._place("t0", 0, "key")
    partition.log.end = 3
    assert judge.read_to(plan, place, [member]) == 3

    partition.log.end = 1
    judge.cut(partition)
    judge.wrote(partition, 1, "key", 3)

    assert judge.read_to(plan, place, [member]) == 1


@pytest.mark.parametrize(("stood", "may_stay"), [(7, False), (None, False), (5, True)])
def test_a_reset_to_where_the_stable_offset_stands_may_move_no_lane(
    cluster: Cluster, stood: int | None, may_stay: bool
) -> None:
    """Lanes beyond it stay, or go back; what members commit after it counts as ever."""
    judge, partition = judge_of(cluster), cluster.topics["t0"].partitions[0]
    plan = judge._scenario.groups[0]
    place, events = judge._place("t0", 0, "key"), judge.events_of("g0")
    for offset in range(12):
        judge.wrote(partition, offset, "key", offset)
    partition.log.end = 12
    events.append(Commit("g0m0.1", place, 9, 1, 1.0, 1.1))
    if stood is not None:
        cluster.commit(*PLACE, Committed(stood))
    cluster.world.now_s = 2.0

    judge.was_reset("g0", ("t0", 0), 5)

    def found(*answers: Answer) -> list[str]:
        group = judge._group_history(plan, [])
        group = replace(group, events=[*group.events, *answers])
        below = chaos_judge.judge(judge._history(plan), group).breaches
        return [each.kind for each in below] + judge._above(plan, group)

    stays = found(Answer("g0m0.2", place, 9, 3.0, 3.1))
    assert any(each.startswith("above") for each in stays) is not may_stay
    assert "below" not in found(Answer("g0m0.2", place, 5, 3.0, 3.1))
    events.append(Commit("g0m0.2", place, 11, 2, 4.0, 4.1))
    assert "below" in found(Answer("g0m0.3", place, 9, 5.0, 5.1))


def pushed(cluster: Cluster, offset: int, *, epoch: int) -> Committed:
    pusher = Pusher(OwnerEpoch(1000, epoch), 0)
    return Committed(offset, said_note(cluster.topics["t0"].topic_id, offset, pusher))
