"""A dict that forgets: whatever a client can name is kept up to a bound only."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


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
