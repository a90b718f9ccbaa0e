"""Waits of clients against the bounds of docs/guarantees.md: what is too long, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.cluster import Held
from tests.simulation.waits import Wait, Waits, between

NODE, BROKERS = "127.0.1.1", ("kafka1", "kafka2", "kafka3")
FETCH, COMMIT, METADATA, CONSUMER_HEARTBEAT = 1, 8, 3, 68


def wait(seconds: float, *, key: int = COMMIT, begin_s: float = 10.0, number: int = 1) -> Wait:
    """Return a request to the listener of broker 2; each connection has its own member."""
    return Wait(f"m{number}", "g", number, NODE, 9003, key, begin_s, begin_s + seconds, True)


def judged(
    *waits: Wait, troubles: Sequence[str] = (), held: Sequence[Held] = (), rights: bool = True
) -> list[str]:
    """Return the breaches of these, while hosts were in trouble all the time."""
    all_waits = Waits(BROKERS, is_right_kept=rights)
    for connection in (1, 2):
        all_waits.note(wait(0.0, key=FETCH, number=connection))
    for each in waits:
        all_waits.note(each)
    for name in troubles:
        all_waits.troubles.note(name, 0.0, 1000.0)
    return [each.split(":")[0] for each in all_waits.breaches(held)]


def test_a_commit_without_a_host_in_trouble_has_thirty_seconds() -> None:
    """Load, lock and answer; what its own broker takes beside is as direct."""
    assert judged(wait(31)) == []
    assert judged(wait(33)) == ["waits"]
    assert judged(wait(33), troubles=["kafka2"]) == []
    assert judged(wait(33), troubles=[between(NODE, "kafka2")]) == []
    assert judged(wait(33), troubles=["m1"]) == []


def test_a_journal_that_is_away_has_its_own_time() -> None:
    """Thirty seconds for each write to it, of which a step back needs two."""
    assert judged(wait(91), troubles=["kafka1"]) == []
    assert judged(wait(93), troubles=["kafka1"]) == ["waits"]


def test_a_fetch_does_not_wait_for_its_broker() -> None:
    """Its own wait and five seconds; ten more where a right may be asked for."""
    assert judged(wait(8, key=FETCH), troubles=["kafka2"]) == ["waits"]
    assert judged(wait(17, key=FETCH), troubles=["kafka2"], rights=False) == []
    assert judged(wait(18, key=FETCH), troubles=["kafka2"], rights=False) == ["waits"]


def test_what_was_refused_for_want_of_a_right_is_asked_for_again() -> None:
    """The broker of the connection has said nothing yet; the next fetch waits for it as well."""
    first, again = wait(9.5, key=FETCH, number=3), wait(9, key=FETCH, begin_s=20.0, number=3)
    assert judged(first, again, troubles=["kafka2"]) == []
    answered = wait(0.5, key=FETCH, number=3)
    assert judged(answered, again, troubles=["kafka2"]) == ["waits"]


def test_of_two_that_wait_side_by_side_one_has_the_lock() -> None:
    """The other one is asked to come again, also where the journal takes its time."""
    one, other = wait(40), wait(24, begin_s=11.0, number=2)
    assert judged(one, other, troubles=["kafka1"]) == ["waits"]
    assert judged(one, wait(20, begin_s=11.0, number=2), troubles=["kafka1"]) == []
    assert judged(one, wait(24, begin_s=11.0), troubles=["kafka1"]) == [], "one connection"


def test_what_waits_on_its_connection_does_not_wait_for_the_lock_yet() -> None:
    """Two of one connection are refused one after the other, each after its own time."""
    one, first = wait(50), wait(11, begin_s=11.0, number=2)
    assert judged(one, first, wait(22.5, begin_s=11.1, number=2), troubles=["kafka1"]) == []
    late = wait(34, begin_s=11.1, number=2)
    assert judged(one, first, late, troubles=["kafka1"]) == ["waits"]


def test_what_stands_before_a_request_on_its_connection_counts() -> None:
    """Answers leave in the order of requests."""
    assert judged(wait(20, key=METADATA)) == ["waits"]
    assert judged(wait(30), wait(29, key=METADATA, begin_s=11.0)) == []
    assert judged(wait(30), wait(30, key=METADATA)) == [], "asked at the same moment"
    assert judged(wait(30, key=METADATA), wait(30)) == ["waits"]


def test_a_push_is_not_waited_for_longer_than_ten_seconds() -> None:
    """A group's lock is held meanwhile; a node that is cut off cannot end its connection."""
    held = Held(COMMIT, NODE, "kafka2", 10.0, 23.0)
    assert judged(held=[held]) == ["held"]
    assert judged(held=[held], troubles=["kafka2"]) == ["held"]
    assert judged(held=[held], troubles=[between(NODE, "kafka2")]) == []


def test_a_heartbeat_of_a_consumer_group_may_wait_for_the_journal() -> None:
    """Lanes are given once the journal has them, which takes as long as for a commit."""
    beat = wait(60, key=CONSUMER_HEARTBEAT)
    assert judged(beat) == ["waits"]
    assert judged(beat, troubles=["kafka3"]) == []
