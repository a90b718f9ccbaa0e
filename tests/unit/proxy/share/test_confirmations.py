"""Outcomes of a partition on their way to its broker."""

from __future__ import annotations

from keylane.proxy.share.confirmations import PROMPT_S, Confirmations
from keylane.share.dispatcher import Dispatcher
from keylane.wire.share import ACCEPT, AckBatch


class Window:
    """A dispatcher whose keys go on early, records of ten keys at a member, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.dispatcher = Dispatcher(frees_early=True)
        self.dispatcher.join("m")
        self.dispatcher.acquire(list(range(10)), list(range(10)), 1, 0.0)
        self.dispatcher.settle(0.0)
        self.dispatcher.take("m", 10, 0.0)
        self.confirmations = Confirmations(self.dispatcher, lambda: self.now_s)

    def accept(self, offset: int) -> bool:
        """Accept a record; whether its poll may be answered early."""
        is_early = self.confirmations.are_prompt(self.now_s)
        acks = [AckBatch(offset, offset, bytes((ACCEPT,)))]
        self.dispatcher.acknowledge("m", acks, self.now_s, lambda _: None)
        return is_early


async def test_polls_are_answered_early_for_a_second_without_a_confirmation() -> None:
    """The second begins with the first outcome, however long nothing had been to confirm."""
    window = Window()
    early = []
    for offset, later_s in enumerate((50.0, PROMPT_S, 0.1)):
        window.now_s += later_s
        early.append(window.accept(offset))

    assert early == [True, True, False]


async def test_polls_are_answered_early_again_after_a_confirmation() -> None:
    """Some outcomes are confirmed, and others are on their way."""
    window = Window()
    window.accept(0)
    acks = window.dispatcher.next_acks()
    window.now_s += 2 * PROMPT_S
    late = window.accept(1)
    unused: object = None
    await window.confirmations.judge(unused, acks, 0, None)  # type: ignore[arg-type]

    assert (late, window.accept(2)) == (False, True)
    assert window.dispatcher.freed_count == 2
