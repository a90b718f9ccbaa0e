"""Changes of a state that the journal does not hold yet: the difference of two sets of ranges."""

from __future__ import annotations

from collections.abc import Iterable

from keylane.offsets.keyed_ranges import KeyedEdit, KeyedRange
from keylane.offsets.values import Changes


class Unsaved:
    """Net difference between what a state holds and what the journal holds of it.

    A write that failed may have reached the journal all the same. So ranges that were
    written and not confirmed are remembered: whichever way they go later, they are written again.

    Invariants: no range is both added and removed; the journal holds at most
    `(ranges - added) | removed | attempted`.
    """

    __slots__ = ("_added", "_attempted", "_has_keys", "_removed", "_reported", "positions")

    def __init__(self) -> None:
        self.positions = True
        """True: the positions, or anything else outside of the ranges, changed."""
        self._added: set[KeyedRange] = set()
        self._removed: set[KeyedRange] = set()
        self._attempted: set[KeyedRange] = set()
        self._has_keys = self._reported = False
        """The record of positions says, or is about to say, that there are ranges of some keys."""

    def copy(self) -> Unsaved:
        """Return an independent copy."""
        other: Unsaved = Unsaved.__new__(Unsaved)
        other.positions = self.positions
        other._added, other._removed = self._added.copy(), self._removed.copy()
        other._attempted = self._attempted.copy()
        other._has_keys, other._reported = self._has_keys, self._reported
        return other

    def note(self, edit: KeyedEdit) -> KeyedEdit:
        """Fold in what one call changed; returns its argument."""
        for item in edit.removed:
            if item in self._added:
                self._added.remove(item)
                if item not in self._attempted:
                    continue
            self._removed.add(item)
        for item in edit.added:
            if item in self._removed:
                self._removed.remove(item)
                if item not in self._attempted:
                    continue
            self._added.add(item)
        return edit

    def note_stored(self, item: KeyedRange, *, is_held: bool) -> None:
        """Note while loading that the journal holds `item`, and whether the state does too."""
        if is_held:
            self._added.discard(item)
        else:
            self._removed.add(item)

    def note_has_keys(self) -> None:
        """Note while loading that the record of positions knows of ranges of some keys."""
        self._has_keys = True

    def report(self, *, has_keys: bool = False) -> Changes:
        """Return what has to be written; from now on it may be in the journal.

        has_keys: there are ranges of some keys only, which the record of positions has to say.
        """
        self._reported = has_keys
        positions = self.positions or has_keys != self._has_keys
        if not (self._added or self._removed):  # the rule: stock clients commit no ranges
            return Changes(positions, (), ())
        self._attempted |= self._added | self._removed
        return Changes(
            positions=positions,
            puts=tuple(sorted(self._added)),
            tombstones=tuple(sorted(self._removed)),
        )

    def saved(self) -> None:
        """Note that all that was given out is in the journal."""
        self.positions, self._has_keys = False, self._reported
        for items in (self._added, self._removed, self._attempted):
            items.clear()

    def held(self, ranges: Iterable[KeyedRange]) -> set[KeyedRange]:
        """Return every range that the journal may hold, `ranges` being those of the state."""
        return (set(ranges) - self._added) | self._removed | self._attempted

    def check(self, ranges: Iterable[KeyedRange]) -> None:
        """Assert the invariants of the class against the state's ranges."""
        present = set(ranges)
        assert not self._added & self._removed
        assert self._added <= present and not self._removed & present
