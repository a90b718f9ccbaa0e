"""The sticky, load-aware assignor: the lanes of each member in the next generation.

`weigh_lanes`, `units`, `fill` and `level` are its four steps. Rates are measured where partitions
are split (`proxy.scans.loads`). Weights are whole numbers because their sum does not depend on the
order in which lanes are listed: every process that plans with the same rates makes the same plan.

What it wants, the first before the second: every lane at one member that subscribes; joined topics
aligned; balance by measured load; lanes stay where they are; few partitions per member; members
near their partitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from keylane.assignor.fill import fill
from keylane.assignor.level import COARSE, Margins, level, polish
from keylane.assignor.model import Lane, LaneTopic, Loads, Member, Plan
from keylane.assignor.units import NO_MEMBER, set_up_board

MEAN_WEIGHT: Final = 1024
"""Weight of a lane with the mean rate; differences below a thousandth of it are noise."""
LANE_WEIGHT: Final = 16
"""Weight of a lane without a byte in it, so that idle lanes are spread as well."""
RATE_MAX: Final = 1e18
"""Bytes per second beyond this are a wrong measurement; sums of less cannot overflow."""


def plan_sticky(
    members: Sequence[Member],
    topics: Sequence[LaneTopic],
    loads: Loads,
    *,
    evens_out: bool = True,
    margins: Margins = COARSE,
) -> Plan:
    """Plan a generation. Same input in any order, same plan.

    evens_out: False: lanes move to members without any, and from those that have ended, and no
    lane moves for a better balance alone. margins: of a better balance; below, those are COARSE.

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
    level(board, is_fresh=len(free) == len(board.units), evens_out=evens_out, margins=margins)
    polish(board, free)
    return {
        member.member_id: tuple(sorted(lane for unit in held for lane in board.units[unit].lanes))
        for member, held in zip(board.members, board.held, strict=True)
    }


def join_rates(bytes_per_s: Loads, records_per_s: Loads) -> dict[Lane, float]:
    """One load of a lane, in bytes per second: half of it its bytes, half of it its records.

    A record counts as many bytes as the mean of all, so that both halves are as much in sum. What
    a consumer does takes a time per byte or a time per record, and which of both is not known.
    Lanes that one of both lacks are left out; the order of neither matters.
    """
    lanes = [lane for lane in bytes_per_s if lane in records_per_s]
    total_records = math.fsum(records_per_s[lane] for lane in lanes)
    if total_records <= 0:
        return {lane: bytes_per_s[lane] for lane in lanes}
    record_bytes = math.fsum(bytes_per_s[lane] for lane in lanes) / total_records
    return {lane: (bytes_per_s[lane] + record_bytes * records_per_s[lane]) / 2 for lane in lanes}


def weigh_lanes(topics: Sequence[LaneTopic], loads: Loads) -> dict[Lane, int]:
    """Weigh every lane of the topics.

    A lane whose rate is unknown (missing, negative, beyond RATE_MAX) counts as the mean of its
    topic, else as the mean of all; without any rate all lanes weigh the same. Cost: O(lanes).
    """
    rates = {
        (topic.name, index): _known(loads.get((topic.name, index)))
        for topic in topics
        for index in range(topic.index_count)
    }
    known = [rate for rate in rates.values() if rate is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    if mean == 0.0:
        return dict.fromkeys(rates, MEAN_WEIGHT)
    means = {topic.name: _topic_mean(topic, rates, mean) for topic in topics}
    return {
        lane: LANE_WEIGHT + _scale(means[lane[0]] if rate is None else rate, mean)
        for lane, rate in rates.items()
    }


def _known(rate: float | None) -> float | None:
    return rate if rate is not None and 0.0 <= rate <= RATE_MAX else None


def _topic_mean(topic: LaneTopic, rates: dict[Lane, float | None], mean: float) -> float:
    known = [
        rate for index in range(topic.index_count) if (rate := rates[topic.name, index]) is not None
    ]
    return math.fsum(known) / len(known) if known else mean


def _scale(rate: float, mean: float) -> int:
    return round(MEAN_WEIGHT * rate / mean)
