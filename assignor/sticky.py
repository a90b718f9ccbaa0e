"""The sticky, load-aware assignor: the lanes of each member in the next generation.

`load`, `units`, `fill` and `level` are its four steps.

What it wants, the first before the second: every lane at one member that subscribes; joined topics
aligned; balance by measured load; lanes stay where they are; few partitions per member; members
near their partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from keylane.assignor.fill import fill
from keylane.assignor.level import level, polish
from keylane.assignor.load import weigh_lanes
from keylane.assignor.model import LaneTopic, Loads, Member, Plan
from keylane.assignor.units import NO_MEMBER, Board, set_up_board


def plan_sticky(members: Sequence[Member], topics: Sequence[LaneTopic], loads: Loads) -> Plan:
    """Plan a generation. Same input in any order, same plan.

    Balance. Let `mean` be the load per member, `lightest` that of the lightest member, and
    `heaviest` the heaviest unit (a lane; all lanes of one key range where topics are joined). When
    all members subscribe to the same topics and share, no member's load exceeds

        max(1.10 * mean, 1.10 * heaviest, 2 * lightest)

    Proof: `level` leaves a member alone within 1.10 times max(share, its own heaviest unit), where
    share <= mean; all others give units away until no move to the lightest helps. Let such a one
    have load B from k units, and the lightest load A. If k = 1, B <= heaviest. If k >= 2, its
    lightest unit u weighs at most B / k, and moving it does not help: A + u >= B. So
    B <= A + B / k, that is B <= A * k / (k - 1) <= 2 * A. What follows (gifts to light members,
    and `polish`) makes no member as busy as its donor was, and never lowers the lightest. Since
    A <= mean, removing members one by one never leaves one above twice the mean, unless by a single
    unit that cannot be cut. With many even lanes k is large, and the bound close to the mean
    itself.

    Moves. A lane leaves a living member that may keep it only by `level`: when the busiest member
    is above 1.10 times the ideal, or one is below 0.80 times the mean. In between nothing moves but
    the lanes of members that left. With lanes of equal weight, no more lanes move than members have
    above the rounded-down mean: each step takes from a member that has at least two more than the
    receiver.

    Members that do not share get whole partitions; one at least stays for those that do.

    Cost: 1,000 members over 10,000 lanes take a fraction of a second (bench/micro/assignor.py).

    Raises:
        ValueError: two members, or two topics, have the same name.
    """
    if len({topic.name for topic in topics}) != len(topics):
        raise ValueError("two topics have the same name")
    board = set_up_board(members, topics, weigh_lanes(topics, loads))
    free = [unit for unit, holder in enumerate(board.holder) if holder == NO_MEMBER]
    fill(board)
    level(board, is_fresh=len(free) == len(board.units))
    polish(board, free)
    return _plan_of(board)


def _plan_of(board: Board) -> Plan:
    return {
        member.member_id: tuple(sorted(lane for unit in held for lane in board.units[unit].lanes))
        for member, held in zip(board.members, board.held, strict=True)
    }
