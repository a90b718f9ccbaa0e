"""Answers leave a connection in the order of their requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keylane.proxy.net.response_order import ResponseOrder


def test_an_early_answer_waits_for_those_before_it() -> None:
    """The third and second are done first; all three leave with the first."""
    order = ResponseOrder()
    first, second, third = order.open(), order.open(), order.open()

    held = [order.fill(third, [b"c"]), order.fill(second, [b"b1", b"b2"])]
    ready = order.fill(first, [b"a"])

    assert held == [[], []]
    assert ready == [b"a", b"b1", b"b2", b"c"]
    assert len(order) == 0


def test_a_request_without_an_answer_holds_no_other_up() -> None:
    """acks=0: its slot is filled with nothing."""
    order = ResponseOrder()
    silent, second = order.open(), order.open()

    held = order.fill(second, [b"b"])
    ready = order.fill(silent, ())

    assert (held, ready) == ([], [b"b"])


@given(st.permutations(range(12)), st.data())
def test_whatever_order_handlers_end_in_answers_keep_that_of_requests(done, data) -> None:
    """Slots are opened and filled in any order; what leaves is 0, 1, 2, ..."""
    order = ResponseOrder()
    slots = [order.open() for _ in done]
    left: list[bytes | bytearray | memoryview] = []

    for number in done:
        left += order.fill(slots[number], [bytes([number])])
        order.check()

    assert left == [bytes([number]) for number in range(12)]
