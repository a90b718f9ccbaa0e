"""Orders: what is written is read, and runs hold the order in which records came."""

from __future__ import annotations

import pytest

from keylane.demo.orders import OrderRun, append_run, order_key, order_value, read_order


def test_an_order_is_read_back() -> None:
    """Customer 7's order 41 is customer 7's order 41."""
    assert read_order(order_key(7), order_value(7, 41)) == (7, 41)


def test_a_foreign_key_is_refused() -> None:
    """A value under another customer's key is not an order."""
    with pytest.raises(ValueError, match="different customers"):
        read_order(order_key(8), order_value(7, 41))


def test_runs_hold_the_order_of_arrival() -> None:
    """Consecutive orders of a customer are one run; a jump or another customer starts a new one."""
    runs: list[OrderRun] = []

    for customer, number in [(1, 0), (1, 1), (2, 5), (1, 2), (1, 4), (1, 3)]:
        append_run(runs, customer, number)

    assert runs == [
        OrderRun(1, 0, 2),
        OrderRun(2, 5, 1),
        OrderRun(1, 2, 1),
        OrderRun(1, 4, 1),
        OrderRun(1, 3, 1),
    ]
    assert runs[0].end == 2
