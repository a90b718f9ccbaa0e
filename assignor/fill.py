"""Place units without a holder: few partitions per member, no member above the common level.

Source: McNaughton's wrap-around rule (fill one member, go on with the next) for whole lanes, with
best fit inside a partition; what fits nowhere goes to the lightest, heaviest first (Graham's LPT).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from keylane.assignor.units import NO_MEMBER, Board, Part

Room = tuple[int, int]
"""Weight that a member may still take up to the level, and its index."""


def fill(board: Board) -> None:
    """Give away all free units, crowd by crowd, those with the fewest members first.

    A crowd with few members has the least choice. Cost: O(units log units + pairs * members).
    """
    free: dict[int, list[int]] = {}
    for unit, holder in enumerate(board.holder):
        if holder == NO_MEMBER:
            free.setdefault(board.units[unit].crowd, []).append(unit)
    for crowd in sorted(free, key=lambda crowd: (len(board.crowds[crowd]), crowd)):
        _fill_crowd(board, board.crowds[crowd], free[crowd])


def _fill_crowd(board: Board, crowd: tuple[int, ...], free: list[int]) -> None:
    by_weight = sorted(free, key=lambda unit: (-board.units[unit].weight, unit))
    level, members, rest = _place_heavy(board, crowd, by_weight)
    rooms = Rooms(board, {m: level - board.load[m] for m in members if board.load[m] < level})
    parts: dict[Part, list[int]] = {}
    # Ascending weight; of equal ones the first lane last, where `pop` takes it first.
    for unit in sorted(rest, key=lambda unit: (board.units[unit].weight, -unit)):
        parts.setdefault(board.units[unit].part, []).append(unit)
    sums = {part: sum(board.units[u].weight for u in units) for part, units in parts.items()}
    left: list[int] = []
    for part in sorted(parts, key=lambda part: (-sums[part], part)):
        left += _deal_part(board, part, parts[part], rooms)
    _place_lightest(board, crowd, left)


def _place_heavy(
    board: Board, crowd: tuple[int, ...], by_weight: list[int]
) -> tuple[int, list[int], list[int]]:
    """Place the units that fit no member: each to the lightest member, which is full with it.

    Returns the level that the remaining members reach when they share the remaining units (water
    poured on their loads), those members, and those units.
    """
    order = sorted(crowd, key=lambda member: (board.load[member], member))
    high = len(order)
    poured = sum(board.units[unit].weight for unit in by_weight)
    total = poured + sum(board.load[member] for member in order)
    for low, unit in enumerate(by_weight):  # each heavy unit takes the lightest member out
        while high - low > 1 and board.load[order[high - 1]] * (high - low) > total:
            high -= 1
            total -= board.load[order[high]]
        weight = board.units[unit].weight
        # Equal shares may differ by rounding: what exceeds the level by that is not heavy.
        fits = (board.load[order[low]] + weight) * (high - low) <= total
        if fits or high - low == 1:
            return -(-total // (high - low)), order[low:high], by_weight[low:]
        total -= board.load[order[low]] + weight
        board.give(unit, order[low])
    return 0, [], []


class Rooms:
    """Members that may still take something, by how much.

    Invariant: `ascending` holds (room, member) of all in `by_member`, and every room is positive.
    """

    def __init__(self, board: Board, by_member: dict[int, int]) -> None:
        self.board, self.by_member = board, by_member
        self.ascending = sorted((room, member) for member, room in by_member.items())
        self._having: dict[Part, list[int]] = {}
        """Members that had units of a partition before: one that gets some takes all that fit."""
        for member in by_member:
            for part in +board.spread[member]:
                self._having.setdefault(part, []).append(member)

    def choose(self, part: Part, remaining: int, lightest: int) -> int | None:
        """Choose the next member for a partition: one that has some, else one near it, else any.

        Among them the one whose room fits the remainder best, else the one with most room. None
        when not even the lightest unit fits.
        """
        if not self.ascending or self.ascending[-1][0] < lightest:
            return None
        having = [
            (self.by_member[member], member)
            for member in self._having.get(part, ())
            if self.by_member.get(member, 0) >= lightest
        ]
        if having:
            return _best_fit(sorted(having), remaining)
        racks = self.board.racks.get(part)
        if racks:
            fitting = self.ascending[bisect_left(self.ascending, (lightest, NO_MEMBER)) :]
            near = [room for room in fitting if self.board.members[room[1]].rack in racks]
            if near:
                return _best_fit(near, remaining)
        return _best_fit(self.ascending, remaining)

    def change(self, member: int, room: int) -> None:
        """Set the room of a member; one without room leaves."""
        self.ascending.pop(bisect_left(self.ascending, (self.by_member.pop(member), member)))
        if room > 0:
            self.by_member[member] = room
            insort(self.ascending, (room, member))


def _best_fit(rooms: Sequence[Room], remaining: int) -> int:
    place = bisect_left(rooms, (remaining, NO_MEMBER))
    return (rooms[place] if place < len(rooms) else rooms[-1])[1]


def _deal_part(board: Board, part: Part, units: list[int], rooms: Rooms) -> list[int]:
    """Deal the units of one partition (ascending weight); return those that fit no member."""
    weights = [board.units[unit].weight for unit in units]
    remaining = sum(weights)
    while units:
        member = rooms.choose(part, remaining, weights[0])
        if member is None:
            return units
        room = rooms.by_member[member]
        while units and (place := bisect_right(weights, room) - 1) >= 0:
            weight = weights.pop(place)
            board.give(units.pop(place), member)
            room -= weight
            remaining -= weight
        rooms.change(member, room)
    return []


def _place_lightest(board: Board, crowd: tuple[int, ...], units: list[int]) -> None:
    """Give each unit, heaviest first, to the member that is lightest by then."""
    heap = [(board.load[member], member) for member in crowd]
    heapq.heapify(heap)
    for unit in sorted(units, key=lambda unit: (-board.units[unit].weight, unit)):
        _, member = heap[0]
        board.give(unit, member)
        heapq.heapreplace(heap, (board.load[member], member))
