"""Which of Kafka's own offsets a transaction may be about to change."""

from __future__ import annotations

import uuid

from keylane.keyrange.key_split import even_split
from keylane.offsets.pushes import Push, Pushes, TransactionWriter
from keylane.offsets.records.journal import StateKey
from keylane.offsets.txn_metadata import LaneCommit

ONE, TWO = (StateKey("g", uuid.UUID(int=1), partition) for partition in (0, 1))
ANN, BOB = TransactionWriter(7, 0), TransactionWriter(8, 0)
COMMITS = (LaneCommit(key_range=even_split(4).key_range(0), offset=5),)


def test_at_a_start_nothing_is_sure() -> None:
    """Until Kafka says that nothing is pending."""
    pushes = Pushes()
    assert (pushes.is_idle, pushes.is_sure(ONE)) == (True, False)

    pushes.note_sure(ONE)

    assert pushes.is_sure(ONE) and not pushes.is_sure(TWO)
    pushes.check()


def test_a_commit_of_the_partition_itself_makes_it_unsure() -> None:
    """Kafka's own offset may be another now; what a transaction holds there stays known."""
    pushes = Pushes()
    pushes.note_sure(ONE)
    pushes.note_push(TWO, Push(ANN, COMMITS))

    for key in (ONE, TWO):
        pushes.note_moved(key)

    assert not pushes.is_sure(ONE) and pushes.is_own(TWO, ANN)
    pushes.check()


def test_a_push_makes_its_partition_unsure() -> None:
    """Also after the transaction's end, until Kafka says so."""
    pushes = Pushes()
    pushes.note_sure(ONE)
    pushes.note_sure(TWO)

    pushes.note_push(ONE, Push(ANN, COMMITS))

    assert [pushes.is_sure(key) for key in (ONE, TWO)] == [False, True]
    assert [pushes.is_own(ONE, writer) for writer in (ANN, BOB)] == [True, False]
    assert (pushes.is_idle, pushes.is_known(ONE)) == (False, True)
    assert pushes.commits_of(ONE, ANN) == COMMITS and pushes.commits_of(ONE, BOB) == ()
    pushes.end(ANN)
    assert (pushes.is_sure(ONE), pushes.is_idle) == (False, True)
    assert (pushes.is_own(ONE, ANN), pushes.commits_of(ONE, ANN)) == (False, ())
    assert pushes.is_known(ONE) and not pushes.is_known(TWO)
    pushes.check()
    pushes.note_sure(ONE)
    assert [pushes.is_known(ONE)] == [False]
    pushes.check()


def test_a_writer_ends_all_of_his_and_no_others() -> None:
    """By producer id and epoch."""
    pushes = Pushes()
    pushes.note_push(ONE, Push(ANN, COMMITS))
    pushes.note_push(TWO, Push(BOB, COMMITS))
    pushes.check()

    pushes.end(BOB)
    pushes.end(BOB)
    pushes.end(TransactionWriter(7, 1))

    assert pushes.is_own(ONE, ANN) and not pushes.is_own(TWO, BOB)
    pushes.check()


def test_kafka_says_that_it_is_over() -> None:
    """The push is forgotten, whatever writer ended it."""
    pushes = Pushes()
    pushes.note_push(ONE, Push(ANN, COMMITS))

    pushes.note_sure(ONE)

    assert pushes.is_idle and pushes.is_sure(ONE)
    pushes.check()


def test_an_unanswered_push_may_come_late() -> None:
    """For others it is in the way for a while; its own writer says the same again."""
    pushes = Pushes()
    pushes.note_push(ONE, Push(ANN, COMMITS, unanswered_until_s=10.0))

    assert pushes.may_still_come(ONE, BOB, 9.0) and pushes.may_still_come(ONE, None, 9.0)
    assert not pushes.may_still_come(ONE, ANN, 9.0)
    assert not pushes.may_still_come(ONE, BOB, 10.0)
    assert not pushes.may_still_come(TWO, BOB, 9.0)


def test_the_end_of_a_writer_ends_its_wait() -> None:
    """The push of a writer that has ended must not be sent any more."""
    pushes = Pushes()

    pushes.wait(ANN)

    assert [pushes.is_waiting(writer) for writer in (ANN, BOB)] == [True, False]
    assert [pushes.is_idle] == [False]
    pushes.end(ANN)
    pushes.leave(ANN)
    assert (pushes.is_idle, pushes.is_waiting(ANN)) == (True, False)
    pushes.check()


def test_a_deleted_state_is_forgotten() -> None:
    """Nothing stays behind."""
    pushes = Pushes()
    pushes.note_push(ONE, Push(ANN, COMMITS))
    pushes.note_sure(TWO)
    pushes.unsaved.add(TWO)

    pushes.forget(ONE)
    pushes.forget(TWO)

    assert pushes.is_idle and not pushes.is_sure(TWO) and not pushes.unsaved
    pushes.check()


def test_states_that_others_may_change_are_as_at_a_start() -> None:
    """Nothing is known of them; the other states' are as they were."""
    pushes = Pushes()
    pushes.note_push(ONE, Push(ANN, COMMITS))
    pushes.note_sure(TWO)
    pushes.unsaved |= {ONE, TWO}

    pushes.forget_where(lambda key: key == ONE)

    assert not pushes.is_known(ONE) and not pushes.is_own(ONE, ANN) and pushes.is_idle
    assert pushes.is_sure(TWO) and pushes.unsaved == {TWO}
    pushes.check()


def test_an_answer_that_comes_after_the_loss_is_not_noted() -> None:
    """Only to a push that is known still."""
    pushes = Pushes()
    pushes.note_push(ONE, Push(ANN, COMMITS, unanswered_until_s=5.0))
    pushes.settle_push(ONE, Push(ANN, COMMITS))
    assert not pushes.may_still_come(ONE, BOB, 1.0) and pushes.commits_of(ONE, ANN) == COMMITS

    pushes.forget_where(lambda _key: True)
    pushes.settle_push(ONE, Push(ANN, COMMITS))

    assert not pushes.is_known(ONE)
    pushes.check()
