"""The records of the demo: orders of customers, numbered without a gap per customer."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

KEY_PREFIX: Final = b"customer-"
ITEMS: Final = ("book", "bread", "chair", "coffee", "flowers", "lamp", "pencils", "tea")


class OrderRun(NamedTuple):
    """Consecutive orders of one customer, in the order in which they were read."""

    customer: int
    first: int
    """Number of the first order."""
    order_count: int

    @property
    def end(self) -> int:
        """Number after the last order."""
        return self.first + self.order_count


def order_key(customer: int) -> bytes:
    """Key of all orders of one customer: Kafka keeps their order, and so does keylane."""
    return KEY_PREFIX + str(customer).encode()


def order_value(customer: int, number: int) -> bytes:
    """Value of one order; `number` starts at 0 for each customer and has no gap."""
    item = ITEMS[(customer + number) % len(ITEMS)]
    order = {"customer": customer, "number": number, "item": item, "amount": 1 + number % 9}
    return json.dumps(order).encode()


def read_order(key: bytes, value: bytes) -> tuple[int, int]:
    """Customer and number of a record.

    Raises:
        ValueError: key and value are not one of the demo's, or belong to different customers.
    """
    order = json.loads(value)
    if order_key(order["customer"]) != key:
        raise ValueError("key and value of a record name different customers")
    return order["customer"], order["number"]


def append_run(runs: list[OrderRun], customer: int, number: int) -> None:
    """Add one order to `runs`: longer last run where it continues it, else a new one."""
    if runs and runs[-1].customer == customer and runs[-1].end == number:
        last = runs[-1]
        runs[-1] = OrderRun(customer, last.first, last.order_count + 1)
    else:
        runs.append(OrderRun(customer, number, 1))
