"""Records of a share group in key order, at members: one promise for each test."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from keylane.share.held import NO_KEY
from keylane.wire.share import ACCEPT, RELEASE, RENEW
from tests.unit.share.by_hand import NOW_S, A, B, Partition

# Order.


def test_the_next_record_of_a_key_waits_for_the_brokers_word() -> None:
    """Not for the member's."""
    part = Partition([A, A])
    part.take()
    part.say(ACCEPT, 0)
    before = part.take()

    part.confirm()

    assert (before, part.take(), part.codes) == ([], [1], [0])


def test_a_released_record_comes_again_before_the_next_one_of_its_key() -> None:
    """It is handed out when the broker has given it again, and the other one after it."""
    part = Partition([A, A])
    part.take()
    part.say(RELEASE, 0)
    part.confirm()
    before = part.take()

    part.acquire(0, count=2)

    assert before == []
    assert [record.count for record in part.take_records("n")] == [2]
    assert part.take() == []


def test_a_hot_key_holds_up_no_other_key() -> None:
    """Its records wait; those of others, and those without a key, go on."""
    part = Partition([A, A, A, B, NO_KEY, NO_KEY])

    taken = [part.take() for _ in range(5)]

    assert taken == [[0], [3], [4], [5], []]


def test_several_records_of_a_key_go_to_one_member_at_once() -> None:
    """The next ones go when all of them are finished, whatever the other member asks for."""
    part = Partition([A, A, A], several_per_key=2)
    taken = part.take(records_max=5)
    part.say(ACCEPT, 1)
    part.confirm()
    between = part.take("n", records_max=5)
    part.say(ACCEPT, 0)

    part.confirm()

    assert (taken, between, part.take("n", records_max=5)) == ([0, 1], [], [2])


def test_a_key_with_many_records_waits_for_few_others() -> None:
    """Of eight records two members have twice four: all turns of a key of eight may take that."""
    others = [NO_KEY] * 4
    part = Partition([*others, A, A, A, A])
    assert part.take("m", records_max=10) == [0, 1, 2]
    assert part.take("n", records_max=10) == [3, 4]

    part = Partition([A, A, A, A, *others])
    assert part.take("m", records_max=10) == [0, 4]
    assert part.take("n", records_max=10) == [5, 6, 7]


def test_a_key_with_most_records_goes_alone() -> None:
    """It holds the group up, and is back soon: it goes first, and others in their order."""
    part = Partition([B, *[A] * 20, NO_KEY])
    for member in "opqrstuv":
        part.dispatcher.join(member)
    assert part.take("m", records_max=10) == [1]
    assert part.take("n", records_max=10) == [0]

    part = Partition([*[A] * 20, B, NO_KEY], several_per_key=2)
    for member in "opqrstuv":
        part.dispatcher.join(member)
    assert part.take("m", records_max=10) == [0, 1]
    assert part.take("n", records_max=10) == [20, 21]


def test_a_member_gets_its_share() -> None:
    """One of two members gets half of what is ready, and no more than it has asked for."""
    part = Partition([NO_KEY] * 8)

    assert part.take("m", records_max=100) == [0, 1, 2, 3]
    assert part.take("n", records_max=3) == [4, 5, 6]


def test_records_that_were_not_sent_are_ready_again() -> None:
    """In their order, with the count that they had; those that the member does not have stay."""
    part = Partition([A, B])
    taken = part.take_records(records_max=1) + part.take_records(records_max=1)
    part.say(ACCEPT, 0)

    part.dispatcher.put_back("m", taken, part.now_s)

    assert part.take(records_max=5) == [1]
    assert [batch[:2] for batch in part.confirm()] == [(0, 0)]


def test_an_answer_that_comes_back_late_takes_nothing_from_the_next_member() -> None:
    """Its member has left, and the record is at another one."""
    part = Partition([A])
    taken = part.take_records("m")
    part.dispatcher.leave("m", part.now_s)
    part.confirm()
    part.acquire(0, count=2)
    part.take("n")

    part.dispatcher.put_back("m", taken, part.now_s)

    assert part.dispatcher.out_count == 1
    part.dispatcher.check()


def test_a_released_record_waits_for_its_pause() -> None:
    """With all of its key; `wake` makes it ready when the time has come."""
    part = Partition([A, A], pause_s=lambda count: 4.0 * count)
    part.take()
    part.say(RELEASE, 0)
    part.confirm()
    part.acquire(0, count=2)
    before = part.take(), part.dispatcher.next_wake_s

    part.now_s += 4.0
    part.dispatcher.wake(part.now_s)

    assert before == ([], NOW_S + 4.0)
    assert (part.dispatcher.ready_count, part.dispatcher.next_wake_s) == (1, None)
    assert part.take() == [0]


# Members.


def test_a_late_acknowledgement_is_refused() -> None:
    """The deadline has passed: the record is released, and the key's next one still waits."""
    part = Partition([A, A])
    part.take()
    part.now_s += part.dispatcher.lock_s
    released = part.dispatcher.expire(part.now_s)

    code = part.say(ACCEPT, 0)

    assert (released, code) == (1, ErrorCode.invalid_record_state)
    assert [bytes(batch.types) for batch in part.confirm()] == [bytes((RELEASE,))]
    assert part.take("n") == []


def test_a_renewal_moves_the_deadline() -> None:
    """By a lock's time from then on; there is nothing to wait for."""
    part = Partition([A])
    part.take()
    part.now_s += 20.0
    code = part.say(RENEW, 0)

    part.now_s += 20.0

    assert (code, part.dispatcher.expire(part.now_s)) == (0, 0)
    assert part.dispatcher.expire(part.now_s + 10.0) == 1


def test_acknowledgements_are_taken_all_or_none() -> None:
    """One offset that the member does not hold refuses the others."""
    part = Partition([A, B])
    part.take("m")
    part.take("n")

    code = part.say(ACCEPT, 0, 1, member="m")

    assert code == ErrorCode.invalid_record_state
    assert part.confirm() == []
    assert part.say(ACCEPT, 0, member="m") is None


def test_what_is_below_the_window_is_finished_and_what_is_beyond_is_unknown() -> None:
    """0 for the first as brokers answer, INVALID_REQUEST for the other."""
    part = Partition([A, B])
    part.take()
    part.say(ACCEPT, 0)
    part.confirm()

    assert part.say(ACCEPT, 0) == 0
    assert part.say(ACCEPT, 2) == ErrorCode.invalid_request
    assert part.say(ACCEPT, 1) == ErrorCode.invalid_record_state


def test_the_bounds_of_the_window_take_no_memory_of_finished_records() -> None:
    """They are asked for only where the brokers' bound of locks is known."""
    part = Partition([NO_KEY] * 1000)
    for first in range(0, 1000, 10):
        part.dispatcher.acquire(list(range(1000 + first, 1010 + first)), [NO_KEY] * 10, 1, NOW_S)
        for offset in part.take(records_max=10):
            part.say(ACCEPT, offset)
        part.confirm()

    assert len(part.dispatcher.records) == 1000
    assert len(part.dispatcher._lowest) <= 1010
    assert part.dispatcher.bounds() == (1000, 1999)


def test_a_member_that_leaves_gives_back_what_it_has() -> None:
    """At once, and without the pause that a member's own release has."""
    part = Partition([A], pause_s=lambda _count: 60.0)
    part.take("m")

    part.dispatcher.leave("m", part.now_s)
    part.confirm()
    part.acquire(0, count=2)

    assert part.take("n") == [0]


# Answers on their way.


def test_an_answer_has_what_its_member_still_holds() -> None:
    """While outcomes of the same request were confirmed, the time of a record was over."""
    part = Partition([A, B])
    taken = part.take_records("m", 1)
    part.now_s += part.dispatcher.lock_s
    later = part.take_records("m", 1)
    part.dispatcher.expire(part.now_s)

    kept = part.dispatcher.keep("m", [*taken, *later], part.now_s)

    assert [record.offset for record in kept] == [1]


def test_the_time_of_a_member_begins_with_its_answer() -> None:
    """It cannot know of a record before."""
    part = Partition([A])
    taken = part.take_records("m", 1)
    part.now_s += part.dispatcher.lock_s - 1
    part.dispatcher.keep("m", taken, part.now_s)
    part.now_s += 2

    assert part.dispatcher.expire(part.now_s) == 0
