"""Naive twin of `keylane.offsets`: a small log, walked one offset at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from keylane.keyrange.space import WHOLE, KeyRange, split_even

ATOM_COUNT = 24
"""1, 2, 3, 4, 6, 8, 12 and 24 lanes have all their borders between atoms."""
ATOMS = split_even(ATOM_COUNT)


def atoms_of(key_range: KeyRange) -> list[int]:
    """Which atoms a key range is made of."""
    return [a for a, atom in enumerate(ATOMS) if key_range.lo <= atom.lo <= key_range.hi]


@dataclass
class Progress:
    """Where an atom of the hash space stands."""

    said: int = 0
    counted: int = 0
    committed: bool = False


@dataclass
class OffsetTwin:
    """A log of records, each of one atom, and which of them were committed.

    `done` is the truth that no stable position may pass: records that somebody committed, and
    that no consumer has asked for again since.
    """

    scan_lanes: tuple[KeyRange, ...]
    base: int = 0
    log: list[int | None] = field(default_factory=list)
    """The atom of each offset's record; None: no record there (a control batch)."""
    scanned: set[int] = field(default_factory=set)
    holes: set[int] = field(default_factory=set)
    individual: set[tuple[int, int]] = field(default_factory=set)
    """(offset, atom) above the atom's place."""
    ranged: dict[KeyRange, set[int]] = field(default_factory=dict)
    """The same as it was committed."""
    done: set[int] = field(default_factory=set)
    atoms: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.atoms = [Progress(said=self.base, counted=self.base) for _ in ATOMS]

    def commit_keys(self, *key_ranges: KeyRange, offset: int, reset: bool = False) -> None:
        """All records of the ranges before `offset` are done; see `OffsetState.commit_keys`."""
        mine = sorted({atom for key_range in key_ranges for atom in atoms_of(key_range)})
        lowest = min(self.atoms[a].said for a in mine)
        ahead = max(self.atoms[a].counted for a in mine)
        goes_back = offset < (ahead if reset else lowest)
        if goes_back:
            # A range loses all of its keys where any of them goes back.
            self.forget_individual(mine, offset)
            self.done -= {o for o in self.records_of(mine) if o >= offset}
        for atom in (self.atoms[a] for a in mine):
            if goes_back or (not atom.committed and offset < atom.said):
                atom.said = atom.counted = offset
            elif not (atom.committed and offset < atom.said):
                atom.said, atom.counted = offset, max(offset, atom.counted)
            atom.committed = True
        self.done |= {o for o in self.records_of(mine) if o < offset}

    def commit_ranges(self, ranges: list[tuple[int, int]], *key_ranges: KeyRange) -> None:
        """Every record of these keys in the ranges is done; no key range is all keys."""
        wholes = [WHOLE[0]] if not key_ranges else list(key_ranges)
        stable = self.stable_position
        for key_range in wholes:
            mine = atoms_of(key_range)
            for first, last in ranges:
                offsets = {o for o in range(first, last + 1) if o >= stable}
                self.ranged.setdefault(key_range, set()).update(offsets)
                self.done |= {o for o in range(first, last + 1) if self.atom_at(o) in (None, *mine)}
                self.individual |= {(o, atom) for o in offsets for atom in mine}
            for number in mine:
                atom = self.atoms[number]
                while (atom.counted, number) in self.individual:
                    atom.counted, atom.committed = atom.counted + 1, True
                    atom.said = atom.counted  # a lower commit of this member is meant
        self.prune()

    def prune(self) -> None:
        """Ranges are forgotten once all of their keys stand behind them."""
        for key_range, offsets in self.ranged.items():
            lowest = min(self.atoms[a].counted for a in atoms_of(key_range))
            offsets -= {o for o in offsets if o < lowest}
        self.individual = {
            (o, a)
            for key_range, offsets in self.ranged.items()
            for a in atoms_of(key_range)
            for o in offsets
        }

    def atom_at(self, offset: int) -> int | None:
        """The atom of a record; None: there is none."""
        return self.log[offset] if offset < len(self.log) else None

    def forget_individual(self, atoms: list[int], offset: int) -> None:
        """Ranges that meet any of these keys end before `offset`."""
        for key_range, offsets in self.ranged.items():
            if set(atoms_of(key_range)) & set(atoms):
                offsets -= {o for o in offsets if o >= offset}
        self.prune()

    def settle(self, *, scan: bool) -> None:
        """Walk every atom as far as nothing is left to be committed."""
        for number, atom in enumerate(self.atoms):
            while True:
                if (atom.counted, number) in self.individual:
                    atom.counted, atom.committed = atom.counted + 1, True
                elif scan and self.nothing_left(number, atom.counted):
                    atom.counted += 1
                else:
                    break
        self.prune()

    def nothing_left(self, number: int, offset: int) -> bool:
        """Whether the atom's lane has no record from here to the end of the scanned region."""
        if offset not in self.scanned:
            return False
        if offset in self.holes:
            return True
        (lane,) = (k for k in self.scan_lanes if number in atoms_of(k))
        mine = atoms_of(lane)
        while offset in self.scanned:
            if self.log[offset] in mine:
                return False
            offset += 1
        return True

    def restart_at(self, offset: int, *, committed: bool) -> None:
        """Everything starts at `offset` again."""
        self.individual.clear()
        self.ranged.clear()
        self.done = {o for o in range(len(self.log)) if o < offset}
        self.atoms = [Progress(said=offset, counted=offset, committed=committed) for _ in ATOMS]

    def cut(self, end: int, fresh: list[int | None]) -> None:
        """Another log goes on at `end`; what members said stands, as it does at Kafka."""
        self.log = self.log[:end] + fresh
        self.scanned, self.holes = set(), set()
        self.forget_individual(list(range(ATOM_COUNT)), end)
        self.done = {o for o in self.done if o < end}
        for number, atom in enumerate(self.atoms):
            if atom.committed:
                self.done |= {o for o in self.records_of([number]) if o < atom.said}
            else:
                atom.said = min(atom.said, end)
            atom.counted = max(atom.said, min(atom.counted, end))

    def raise_to(self, offset: int) -> None:
        """A direct consumer has committed everything before `offset`."""
        self.done |= set(range(offset))
        for number, atom in enumerate(self.atoms):
            if atom.said < offset or not atom.committed:
                counted = max(offset, atom.counted) if atom.committed else offset
                self.atoms[number] = Progress(said=offset, counted=counted, committed=True)

    @property
    def stable_position(self) -> int:
        """Everything before it is committed by everyone."""
        return min(atom.counted for atom in self.atoms)

    def records_of(self, atoms: list[int]) -> set[int]:
        """Offsets of the records of some atoms."""
        return {offset for offset, atom in enumerate(self.log) if atom in atoms}

    def first_uncommitted(self, atoms: list[int]) -> int:
        """Offset of the first record of these atoms that is not done; the log end without one."""
        return min(self.records_of(atoms) - self.done, default=len(self.log))
