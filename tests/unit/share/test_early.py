"""Keys that go on before the broker has confirmed their records (`confirm: received`)."""

from __future__ import annotations

from keylane.share.dispatcher import Dispatcher
from keylane.share.held import AckTicket
from keylane.wire.share import ACCEPT, REJECT, RELEASE, AckBatch

A, B = 1, 2
BAD_STATE = 121
NOW_S = 100.0


class Early:
    """A window with two members, and the answers that they have got."""

    def __init__(self, points: list[int], *, copies: bool = False) -> None:
        self.dispatcher = Dispatcher(frees_early=True, copies_rejected=copies)
        self.answers: list[int] = []
        for member in "mn":
            self.dispatcher.join(member)
        self.dispatcher.acquire(list(range(len(points))), points, 1, NOW_S)
        self.dispatcher.settle(NOW_S)

    def take(self, member: str = "m") -> list[int]:
        """Hand out one record."""
        return [each.offset for each in self.dispatcher.take(member, 1, NOW_S)]

    def say(self, kind: int, offset: int) -> None:
        """A member decides."""
        acks = [AckBatch(offset, offset, bytes((kind,)))]
        assert self.dispatcher.acknowledge("m", acks, NOW_S, self._over) is None
        self.dispatcher.check()

    def _over(self, ticket: AckTicket) -> None:
        self.answers.append(ticket.error_code)


def test_a_key_goes_on_when_its_member_has_finished_a_record() -> None:
    """The outcome is sent all the same, and answered when it is confirmed."""
    window = Early([A, A, A])
    for offset in range(3):
        assert window.take() == [offset]
        window.say(ACCEPT if offset else REJECT, offset)

    acks = window.dispatcher.next_acks()

    assert (window.dispatcher.freed_count, window.answers) == (3, [])
    assert [batch[:2] for batch in acks] == [(0, 0), (1, 2)]
    window.dispatcher.acked(acks, NOW_S)
    assert (window.dispatcher.freed_count, window.answers) == (0, [0, 0, 0])
    assert not window.dispatcher.records


def test_a_key_waits_for_a_release_and_for_a_dead_letter() -> None:
    """The broker counts a release; a letter is written before its record ends."""
    released, rejected = Early([A, A]), Early([A, A], copies=True)
    for window, kind in ((released, RELEASE), (rejected, REJECT)):
        window.take()
        window.say(kind, 0)
        assert window.take("n") == []

    (letter,) = rejected.dispatcher.to_copy
    rejected.dispatcher.copied(letter, NOW_S)
    assert rejected.take("n") == [1]


def test_a_lost_lock_does_not_bring_a_finished_record_back() -> None:
    """The broker refuses the outcome, and gives the record again: it is sent once more."""
    window = Early([A, A])
    window.take()
    window.say(ACCEPT, 0)
    acks = window.dispatcher.next_acks()
    assert window.take("n") == [1]

    window.dispatcher.refused(acks, BAD_STATE, NOW_S)
    assert (list(window.dispatcher.gone), window.answers) == ([0], [])
    window.dispatcher.acquire([0], [A], 2, NOW_S)
    window.dispatcher.check()

    assert window.take() == []
    acks = window.dispatcher.next_acks()
    assert [batch[:2] for batch in acks] == [(0, 0)]
    window.dispatcher.acked(acks, NOW_S)
    assert window.answers == [0]


def test_a_new_session_finds_what_is_finished() -> None:
    """Of two outcomes on their way one was written, and the other record comes again."""
    window = Early([A, B])
    for offset in range(2):
        window.take()
        window.say(ACCEPT, offset)
    window.dispatcher.next_acks()

    window.dispatcher.lose_all(NOW_S)
    window.dispatcher.acquire([1], [B], 2, NOW_S)
    finished = window.dispatcher.settle(NOW_S)
    window.dispatcher.check()

    assert [record.offset for record in finished] == [0]
    assert (window.take(), window.answers) == ([], [0])
    assert [batch[:2] for batch in window.dispatcher.next_acks()] == [(1, 1)]


def test_a_log_that_was_cut_has_another_record_at_the_offset() -> None:
    """The outcome of the one that is lost ends nothing, and its member learns that."""
    window = Early([A, B])
    window.take()
    window.say(ACCEPT, 0)

    window.dispatcher.lose_all(NOW_S)
    window.dispatcher.acquire([0, 1], [B, B], 1, NOW_S)
    window.dispatcher.settle(NOW_S)
    window.dispatcher.check()

    assert (window.answers, window.dispatcher.freed_count) == ([BAD_STATE], 0)
    assert window.take() == [0]
    assert not window.dispatcher.has_acks


def test_a_record_without_a_lock_keeps_its_key() -> None:
    """Its session was lost while it was at its member: the key goes on with the confirmation."""
    window = Early([A, A])
    window.take()
    window.dispatcher.lose_all(NOW_S)
    window.say(ACCEPT, 0)
    window.dispatcher.acquire([0, 1], [A, A], 2, NOW_S)
    window.dispatcher.settle(NOW_S)

    assert window.take("n") == []
    window.dispatcher.acked(window.dispatcher.next_acks(), NOW_S)
    assert window.take("n") == [1]
