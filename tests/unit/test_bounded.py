"""A dict with a bound forgets what was used the longest ago."""

from __future__ import annotations

from keylane.bounded import BoundedDict


def test_the_entry_that_was_used_the_longest_ago_goes_first() -> None:
    """Setting and using make an entry young; asking for it by `get` does not."""
    known: BoundedDict[str, int] = BoundedDict(3)
    for number, key in enumerate("abc"):
        known[key] = number

    known["a"] = 7
    assert known.use("b") == 1 and known.get("c") == 2
    known["d"] = 3
    known["e"] = 4

    assert dict(known) == {"b": 1, "d": 3, "e": 4}


def test_setdefault_keeps_to_the_bound() -> None:
    """An entry that setdefault adds pushes the oldest out."""
    known: BoundedDict[str, int] = BoundedDict(1)
    known["a"] = 1

    assert known.setdefault("b", 2) == 2

    assert dict(known) == {"b": 2}
    assert known.use("a") is None
