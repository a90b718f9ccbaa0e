"""Dicts that forget: whatever a client can name is kept up to a bound only."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Costed(Protocol):
    """Value that knows its cost."""

    @property
    def cost(self) -> int:
        """Return what it takes now, in the unit of the bound."""


Key = TypeVar("Key")
Value = TypeVar("Value")
CostedValue = TypeVar("CostedValue", bound=Costed)


class BoundedDict(OrderedDict[Key, Value]):
    """At most `size_max` entries; the one that was set or used the longest ago goes first."""

    def __init__(self, size_max: int) -> None:
        super().__init__()
        self._size_max = size_max

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._size_max:
            self.popitem(last=False)

    def use(self, key: Key) -> Value | None:
        """Return the value and count it as used now; None: the key is unknown."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value


class CostBoundedDict(OrderedDict[Key, CostedValue]):
    """Values with a bounded sum of costs; the one that was changed the longest ago goes first.

    Invariant: `cost` is the sum; a bound is passed only by one value alone.
    """

    def __init__(
        self, make: Callable[[], CostedValue], *, cost_max: int, size_max: int = sys.maxsize
    ) -> None:
        super().__init__()
        self._make, self._cost_max, self._size_max = make, cost_max, size_max
        self.cost = 0

    @contextmanager
    def changed(self, key: Key) -> Iterator[CostedValue]:
        """Give the value to be changed, made if there is none; its cost is counted afterwards."""
        known = self.drop(key)
        value = self[key] = self._make() if known is None else known
        try:
            yield value
        finally:
            self.cost += value.cost
            while len(self) > 1 and (len(self) > self._size_max or self.cost > self._cost_max):
                self.drop(next(iter(self)))

    def drop(self, key: Key) -> CostedValue | None:
        """Remove a value; None: there was none."""
        value = self.pop(key, None)
        if value is not None:
            self.cost -= value.cost
        return value

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert self.cost == sum(value.cost for value in self.values())
        assert len(self) <= self._size_max
        assert self.cost <= self._cost_max or len(self) <= 1
