"""What one node holds at a moment, and since when without a break."""

from __future__ import annotations

import pytest

from keylane.proxy.nodes.lease import NOT_HELD, Lease


@pytest.fixture
def lease() -> Lease:
    """Of a session of 10 s, synced in generation 3 with partitions 1 and 2; sent at 100 s."""
    made = Lease(10.0)
    made.suspend()
    made.synced(3, (1, 2), sent_s=100.0)
    return made


def test_nothing_is_held_before_the_first_sync() -> None:
    """Whatever the clock says."""
    lease = Lease(10.0)

    assert not lease.holds(0, -1e9) and lease.term(0) == NOT_HELD
    assert lease.is_joining and lease.generation_id == NOT_HELD


def test_a_lease_lasts_from_when_the_request_was_sent(lease) -> None:
    """0.8 of the session; a partition of somebody else is never held."""
    assert lease.is_good(107.9) and not lease.is_good(108.0)
    assert lease.holds(1, 107.9) and lease.holds(2, 107.9)
    assert not lease.holds(3, 100.0)
    assert not lease.holds(1, 108.0)


def test_a_heartbeat_makes_it_last_and_brings_back_the_same_term(lease) -> None:
    """Also after it was over: in our generation no other node can have had it."""
    before = lease.term(1)

    lease.renewed(sent_s=150.0)

    assert lease.holds(1, 157.9) and not lease.holds(1, 158.0)
    assert lease.term(1) == before


def test_an_older_heartbeat_does_not_shorten_it(lease) -> None:
    """Answers say when their own requests were sent."""
    lease.renewed(sent_s=99.0)

    assert lease.is_good(107.9)


def test_nothing_is_held_from_before_joingroup_is_sent(lease) -> None:
    """What a heartbeat says then is of the generation before."""
    lease.suspend()
    lease.renewed(sent_s=101.0)

    assert not lease.holds(1, 101.0)
    assert lease.partitions == {1, 2}, "it is what we claim"


def test_a_term_goes_on_from_one_generation_to_the_next(lease) -> None:
    """For what stays ours; what is new has another, and what comes back later as well."""
    old = lease.term(1)

    lease.suspend()
    lease.synced(4, (1, 3), sent_s=101.0)
    new = lease.term(3)
    assert lease.term(1) == old != new
    assert lease.term(2) == NOT_HELD

    lease.suspend()
    lease.synced(5, (1, 2), sent_s=102.0)
    assert lease.term(1) == old
    assert lease.term(2) not in {old, new, NOT_HELD}


def test_the_same_generation_again_is_no_break(lease) -> None:
    """A member that lost an answer is handed the generation that it has."""
    old = lease.term(1)

    lease.suspend()
    lease.synced(3, (1, 2), sent_s=101.0)

    assert lease.term(1) == old


@pytest.mark.parametrize("generation_id", [1, 2, 5, 9])
def test_a_missed_generation_is_a_break(lease, generation_id: int) -> None:
    """Somebody else may have had it and given it back."""
    old = lease.term(1)

    lease.suspend()
    lease.synced(generation_id, (1, 2), sent_s=101.0)

    assert lease.term(1) not in {old, NOT_HELD}


@pytest.mark.parametrize(("generation_id", "breaks"), [(3, 0), (4, 0), (5, 1), (2, 1)])
def test_breaks_are_counted(lease, generation_id: int, breaks: int) -> None:
    """What was begun before one of them may have gone on at another node."""
    before = lease.breaks

    lease.suspend()
    lease.synced(generation_id, (1,), sent_s=101.0)

    assert lease.breaks - before == breaks


def test_time_goes_on_while_the_nodes_agree_anew(lease) -> None:
    """A node that hangs meanwhile knows when it wakes up that its time is over."""
    lease.suspend()

    assert lease.has_time(107.9) and not lease.is_good(107.9)
    assert not lease.has_time(108.0)


def test_what_was_lost_begins_anew(lease) -> None:
    """Expelled: nothing is held or claimed, and the next generation is no continuation."""
    old = lease.term(1)

    lease.lose()
    assert not lease.holds(1, 100.0) and lease.term(1) == NOT_HELD
    assert not lease.partitions and lease.generation_id == NOT_HELD

    lease.synced(4, (1,), sent_s=101.0)
    assert lease.term(1) not in {old, NOT_HELD}


def test_what_is_assumed_is_held_and_goes_on_in_the_first_generation() -> None:
    """Before a generation is made; its sync keeps the term, whatever number it has."""
    lease = Lease(10.0)
    lease.suspend()

    lease.assume({0}, sent_s=100.0)
    held, term = lease.holds(0, 107.9), lease.term(0)
    lease.synced(7, (0,), sent_s=104.0)

    assert held and not lease.is_assumed
    assert lease.term(0) == term != NOT_HELD
    assert lease.holds(0, 111.9)


def test_what_is_assumed_lasts_from_when_was_asked_for_it() -> None:
    """It is asked for again each second, in one term; a coordinator that is silent ends it."""
    lease = Lease(10.0)
    lease.assume({0}, sent_s=100.0)
    term = lease.term(0)

    lease.assume({0}, sent_s=101.0)

    assert lease.holds(0, 108.9) and not lease.holds(0, 109.0)
    assert lease.term(0) == term


@pytest.mark.parametrize("end", ["suspend", "lose"])
def test_what_is_about_to_be_given_up_is_held_and_takes_nothing_on(end: str) -> None:
    """Until it is given up; the next generation begins anew."""
    lease = Lease(10.0)
    lease.synced(1, (0,), sent_s=100.0)
    before = lease.takes_on(0, 101.0)

    lease.drain()

    assert before and lease.holds(0, 101.0) and not lease.takes_on(0, 101.0)
    getattr(lease, end)()
    assert not lease.holds(0, 101.0)
    lease.synced(2, (0,), sent_s=101.0)
    assert lease.takes_on(0, 101.0)


@pytest.mark.parametrize("end", ["suspend", "lose"])
def test_what_was_assumed_and_given_up_begins_a_new_term(end: str) -> None:
    """Somebody else may have been given it in between."""
    lease = Lease(10.0)
    lease.assume({0}, sent_s=100.0)
    term = lease.term(0)

    getattr(lease, end)()
    held = lease.holds(0, 100.0)
    lease.synced(3, (0,), sent_s=102.0)

    assert not held
    assert lease.term(0) != term
