"""Back-pressure: what is paused, and what a poll may bring."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.client.workers.pauses import PausePlan, QueueRoom, plan_pauses, pressures_of
from tests.reference.worker_source import P0, P1, P2

PLACES = frozenset({P0, P1, P2})


def make_room(queued: int, held_bytes: int = 0) -> QueueRoom:
    return QueueRoom(queued, 90, held_bytes, 1_000, record_bytes=10, partition_count=3)


def test_full_queues_pause_all():
    """By count or by bytes: all that is not paused yet is to be."""
    for room in (make_room(90), make_room(1, 1_000)):
        plan = plan_pauses(room, PLACES, {P0}, lambda place: 0)

        assert plan == PausePlan(frozenset({P1, P2}), frozenset())


def test_half_empty_queues_resume_all():
    """At a half and below nothing stays paused."""
    plan = plan_pauses(make_room(45, 500), PLACES, {P0, P1}, lambda place: 30)

    assert plan == PausePlan(frozenset(), frozenset({P0, P1}))


def test_a_hot_partition_is_paused_by_itself():
    """From half full on, more than a fair share pauses, and half a share resumes."""
    counts = {P0: 31, P1: 15, P2: 16}

    plan = plan_pauses(make_room(62), PLACES, {P1, P2}, counts.__getitem__)

    assert plan == PausePlan(frozenset({P0}), frozenset({P1}))


def test_the_last_quarter_is_for_partitions_that_run_low():
    """From three quarters on, by count or bytes, those go on that have a quarter of their share."""
    counts = {P0: 8, P1: 7, P2: 7}

    for room in (make_room(68), make_room(22, 750)):
        plan = plan_pauses(room, PLACES, {P2}, counts.__getitem__)

        assert plan == PausePlan(frozenset({P0}), frozenset({P2}))
    assert make_room(66).records_max() == 1
    assert make_room(68).records_max() == 22


def test_records_of_lanes_behind_count_more():
    """Twice the mean lag counts four times; below the mean, and where it is not known, it is 1."""
    assert pressures_of({P0: 1_000, P1: 500, P2: 0}) == {P0: 4, P1: 1, P2: 1}
    assert pressures_of({P0: 300, P1: None, P2: 100}) == {P0: 2.25, P2: 1}
    assert pressures_of({P0: 0, P1: None}) == pressures_of({}) == {}


def test_one_partition_has_the_whole_queue():
    """It needs no room kept for others: nothing is paused before all is full."""
    room = make_room(89)._replace(partition_count=1)

    assert plan_pauses(room, {P0}, frozenset(), lambda place: 89) == (frozenset(), frozenset())
    assert (room.records_max(), room.records_max_of_one()) == (1, 90)


def test_partitions_that_are_gone_are_not_resumed():
    """What is not assigned any more is in no plan."""
    assert plan_pauses(make_room(0), {P0}, {P1}, lambda place: 0) == (frozenset(), frozenset())


def test_room_of_a_poll():
    """A poll may bring what has room by count and by mean size, and one at least."""
    assert make_room(50).records_max() == 17
    assert make_room(80).records_max() == 10
    assert make_room(0, 955).records_max() == 4
    assert make_room(90, 2_000).records_max() == 1
    assert QueueRoom(0, 1_000, 0, 64 * 1024 * 1024).records_max() == 64
    many = QueueRoom(0, 3_200, 0, 1_000, partition_count=100)
    assert (many.records_max_of_one(), many._replace(queued_max=12_800).records_max_of_one()) == (
        16,
        32,
    )


@given(
    st.integers(0, 100),
    st.integers(0, 1_100),
    st.sets(st.sampled_from(sorted(PLACES))),
    st.sets(st.sampled_from(sorted(PLACES))),
    st.lists(st.integers(0, 100), min_size=3, max_size=3),
)
def test_plans_are_changes(queued, held_bytes, assigned, paused, counts):
    """A plan pauses what was open and resumes what was paused, each of them assigned."""
    by_place = dict(zip(sorted(PLACES), counts, strict=True))

    plan = plan_pauses(make_room(queued, held_bytes), assigned, paused, by_place.__getitem__)

    assert plan.pause <= assigned - paused
    assert plan.resume <= assigned & paused
    now_paused = (paused & assigned | plan.pause) - plan.resume
    if not make_room(queued, held_bytes).is_full:
        assert all(by_place[place] > 3 for place in now_paused), "those with least are open"
    else:
        assert (paused & assigned | plan.pause) - plan.resume == assigned
