"""Even out a plan that has every unit placed: only moves that help, and only when needed.

Source: local search for makespan by moves from the busiest to the lightest (Finn and Horowitz,
1979), with swaps; the margins below are our own.

Rates are measured and waver. So nothing moves while the busiest member is within 10% of what can
be asked for, and no member is below 80% of the mean; beyond that, members are brought to 3% and
95%. Kafka's sticky assignor has no margin because it counts partitions, which do not waver. A plan
by fine margins makes up, once, for lanes that were dealt out before their rates were known.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from keylane.assignor.units import Board

IDLE_MIN: Final = 0.80
"""Times the mean: a member below this is given something."""
IDLE_SETTLED: Final = 0.95
GRAINS: Final = 32
"""Results of moves that differ by less than this part of the mean are equally good."""
POLISHED: Final = 1.005
POLISH_GRAINS: Final = 1000
"""The same two of units that move anyhow."""
SWAP_PARTNERS: Final = 8
"""Lightest members that are looked at for a swap."""

Move = tuple[int, int]
"""Unit and the member it goes to."""


@dataclass(frozen=True, slots=True)
class Margins:
    """Loads of the busiest member, as parts of the ideal."""

    busy_max: float
    """Above this it gives something up."""
    settled: float
    """It gives up to come down to this."""
    grains: int
    """Parts of the mean; results of moves that differ by less than one are equally good."""


COARSE: Final = Margins(busy_max=1.10, settled=1.03, grains=GRAINS)
FINE: Final = Margins(busy_max=1.01, settled=1.001, grains=POLISH_GRAINS)


def level(
    board: Board, *, is_fresh: bool = False, evens_out: bool = True, margins: Margins = COARSE
) -> None:
    """Bring the members within the margins, as far as moves and swaps can.

    is_fresh: no member owned a unit, so nothing is moved by evening out better.
    evens_out: False: only members without a unit are given some.
    """
    leveller = _Leveller(board, grains=margins.grains)
    active = leveller.active
    if not active:
        return
    if not evens_out and not is_fresh:
        leveller.raise_idle([member for member in active if not board.held[member]])
        return
    if is_fresh or any(leveller.excess(member, margins.busy_max) > 0 for member in active):
        leveller.lower(margins.settled)
    floor = (IDLE_SETTLED if is_fresh else IDLE_MIN) * leveller.share
    if min(board.load[member] for member in active) < floor:
        leveller.raise_idle(active)


def polish(board: Board, movable: Collection[int]) -> None:
    """Even out further by units without an owner: where those go costs nothing.

    No member becomes as busy as its donor was, the lightest does not become lighter, and a member
    without a unit of a partition gets none of it.
    """
    leveller = _Leveller(board, grains=POLISH_GRAINS, movable=frozenset(movable))
    if len(leveller.active) > 1 and movable:
        leveller.lower(POLISHED)


def find_share(weights: Iterable[int], member_count: int) -> float:
    """Load of a member when units may be cut, but those above it stay whole at one member each."""
    descending = sorted(weights, reverse=True)
    total = sum(descending)
    for heavy_count, weight in enumerate(descending):
        if heavy_count == member_count - 1 or weight * (member_count - heavy_count) <= total:
            return total / (member_count - heavy_count)
        total -= weight
    return 0.0


class _Leveller:
    """The search. Every step makes the sum of the squared loads smaller, so it ends.

    Invariant: each heap holds the present load of every member of its crowd, beside older ones.
    """

    def __init__(
        self,
        board: Board,
        *,
        grains: int,
        movable: frozenset[int] | None = None,
    ) -> None:
        """movable: units that may move, inside of what members have of partitions; None: all."""
        self.board, self._movable = board, movable
        self.active = sorted({member for crowd in board.crowds for member in crowd})
        self.share = find_share((unit.weight for unit in board.units), len(self.active))
        self.grain = max(1, int(self.share / grains))
        self._lightest = [
            [(board.load[member], member) for member in crowd] for crowd in board.crowds
        ]
        for heap in self._lightest:
            heapq.heapify(heap)
        self._crowds_of: list[list[int]] = [[] for _ in board.members]
        for index, crowd in enumerate(board.crowds):
            for member in crowd:
                self._crowds_of[member].append(index)

    def excess(self, member: int, margin: float) -> float:
        """Return the excess over `margin` times the member's due: its share, or heaviest unit."""
        units = self.board.units
        if self.board.load[member] <= margin * self.share:
            return 0.0
        heaviest = max(units[unit].weight for unit in self.board.held[member])
        return self.board.load[member] - margin * max(self.share, heaviest)

    def lower(self, settled: float) -> None:
        """Take from members above their due, the busiest first, while a move or a swap helps."""
        swaps_left = 2 * len(self.active)
        changed = True
        while changed:
            changed = False
            busiest = [(-self.board.load[member], member) for member in self.active]
            heapq.heapify(busiest)
            while busiest and -busiest[0][0] > settled * self.share:
                negative, member = heapq.heappop(busiest)
                if -negative != self.board.load[member] or self.excess(member, settled) <= 0:
                    continue  # it was busier once, or has one unit that cannot be cut
                moves = self._find_move(member)
                if not moves and swaps_left > 0:
                    moves = self._find_swap(member)
                    swaps_left -= 1
                if not moves:
                    continue
                changed = True
                for place in self._apply(moves):
                    heapq.heappush(busiest, (-self.board.load[place], place))

    def raise_idle(self, members: Iterable[int]) -> None:
        """Give to those below the share, the lightest first, from the busiest that can."""
        load = self.board.load
        busiest = [[(-load[donor], donor) for donor in crowd] for crowd in self.board.crowds]
        for heap in busiest:
            heapq.heapify(heap)
        for member in sorted(members, key=lambda member: (load[member], member)):
            while load[member] < IDLE_SETTLED * self.share:
                gifts = [
                    gift
                    for crowd in self._crowds_of[member]
                    if (gift := self._find_gift(member, crowd, busiest[crowd])) is not None
                ]
                if not gifts:
                    break
                _, unit = min(gifts)
                for place in self._apply([(unit, member)]):
                    for crowd in self._crowds_of[place]:
                        heapq.heappush(busiest[crowd], (-load[place], place))

    def _apply(self, moves: Iterable[Move]) -> set[int]:
        touched: set[int] = set()
        for unit, receiver in moves:
            touched |= {self.board.holder[unit], receiver}
            self.board.give(unit, receiver)
        for member in touched:
            for crowd in self._crowds_of[member]:
                heapq.heappush(self._lightest[crowd], (self.board.load[member], member))
        return touched

    def _lightest_of(self, crowd: int) -> int:
        heap = self._lightest[crowd]
        while heap[0][0] != self.board.load[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0][1]

    def _find_move(self, member: int) -> list[Move]:
        """The best move of one unit to the lightest member that may have it; none if none helps.

        Of moves that end about equally well: to a member that has of the partition, then of a
        partition that this member has least of.
        """
        board, load = self.board, self.board.load[member]
        best: tuple[int, bool, int, int] | None = None
        for unit in self._movable_of(member):
            value = board.units[unit]
            receiver = self._lightest_of(value.crowd)
            after = board.load[receiver] + value.weight
            if receiver == member or after >= load or not self._may_move(unit, receiver):
                continue
            key = (
                max(after, load - value.weight) // self.grain,
                board.spread[receiver][value.part] == 0,
                board.spread[member][value.part],
                unit,
            )
            best = key if best is None else min(best, key)
        if best is None:
            return []
        return [(best[-1], self._lightest_of(board.units[best[-1]].crowd))]

    def _find_swap(self, member: int) -> list[Move]:
        """The best swap of a unit for a lighter one of a light member; none if none helps."""
        board, load = self.board, self.board.load[member]
        best: tuple[int, int, int] | None = None
        light = heapq.nsmallest(
            SWAP_PARTNERS + 1, self.active, key=lambda other: (board.load[other], other)
        )
        for other in light:
            if other == member:
                continue
            theirs = sorted((board.units[unit].weight, unit) for unit in self._movable_of(other))
            for unit in self._movable_of(member):
                weight = board.units[unit].weight
                wanted = weight - (load - board.load[other]) // 2
                place = bisect_left(theirs, (wanted, -1))
                for lighter, back in theirs[max(0, place - 1) : place + 1]:
                    shift = weight - lighter
                    after = max(load - shift, board.load[other] + shift)
                    if after > load - self.grain or not self._may_swap(unit, back, member, other):
                        continue
                    key = (after, unit, back)
                    best = key if best is None else min(best, key)
        if best is None:
            return []
        _, unit, back = best
        return [(unit, board.holder[back]), (back, member)]

    def _may_swap(self, unit: int, back: int, member: int, other: int) -> bool:
        mine, theirs = self.board.units[unit].crowd, self.board.units[back].crowd
        is_theirs = mine == theirs or (
            mine in self._crowds_of[other] and theirs in self._crowds_of[member]
        )
        return is_theirs and self._may_move(unit, other) and self._may_move(back, member)

    def _movable_of(self, member: int) -> Collection[int]:
        held = self.board.held[member]
        return held if self._movable is None else held & self._movable

    def _may_move(self, unit: int, receiver: int) -> bool:
        return self._movable is None or self.board.spread[receiver][self.board.units[unit].part] > 0

    def _find_gift(
        self, member: int, crowd: int, busiest: list[tuple[int, int]]
    ) -> tuple[int, int] | None:
        """A unit of the crowd for a light member, from the busiest that has one that helps.

        Returns the donor's load below zero, and the unit. `busiest` is a heap of the crowd's
        members; donors that are passed over go back into it.
        """
        board, load = self.board, self.board.load
        passed: list[tuple[int, int]] = []
        found: tuple[int, int] | None = None
        while busiest and found is None and -busiest[0][0] - load[member] > 1:
            negative, donor = heapq.heappop(busiest)
            if -negative != load[donor]:
                continue  # it was busier once
            passed.append((negative, donor))
            gap = load[donor] - load[member]
            keys = [
                (
                    abs(2 * board.units[unit].weight - gap) // (2 * self.grain),
                    board.spread[member][board.units[unit].part] == 0,
                    board.spread[donor][board.units[unit].part],
                    unit,
                )
                for unit in board.held[donor]
                if board.units[unit].weight < gap and board.units[unit].crowd == crowd
            ]
            if keys:
                found = (negative, min(keys)[-1])
        for entry in passed:
            heapq.heappush(busiest, entry)
        return found
