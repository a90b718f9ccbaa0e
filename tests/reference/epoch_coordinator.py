"""A coordinator of KIP-848 groups in few lines: one topic, whole target assignments, no pity.

It follows CurrentAssignmentBuilder of Apache Kafka: a member is asked to give up first, says so,
and then gets what no other member has. Time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from keylane.client.group.heartbeats import HeartbeatAnswer, HeartbeatRequest

TOPIC_ID = UUID(int=7)
UNKNOWN_MEMBER_ID, INVALID_REQUEST, FENCED = 25, 42, 110


@dataclass
class KnownMember:
    """A member as the coordinator keeps it."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: set[int] = field(default_factory=set)
    pending: set[int] = field(default_factory=set)
    seen_s: float = 0.0
    asked_s: float = 0.0


class ConsumerCoordinator:
    """One group. `plan_number` turns the plan, so that everything may move."""

    def __init__(self, partitions: int, session_s: float, rebalance_s: float) -> None:
        self.partitions, self.session_s, self.rebalance_s = partitions, session_s, rebalance_s
        self.members: dict[str, KnownMember] = {}
        self.epoch = 0
        self.plan_number = 0

    def target(self, member_id: str) -> set[int]:
        order = sorted(self.members)
        place, count = order.index(member_id), len(order)
        return {p for p in range(self.partitions) if (p + self.plan_number) % count == place}

    def replan(self) -> None:
        self.plan_number += 1
        self.epoch += 1

    def remove(self, member_id: str) -> None:
        if self.members.pop(member_id, None) is not None:
            self.epoch += 1

    def expire(self, now_s: float) -> None:
        for member_id, member in list(self.members.items()):
            is_late = bool(member.pending) and now_s > member.asked_s + self.rebalance_s
            if is_late or now_s > member.seen_s + self.session_s:
                self.remove(member_id)

    def heartbeat(self, request: HeartbeatRequest, now_s: float) -> HeartbeatAnswer:
        if request.epoch < 0:
            known = request.member_id in self.members
            self.remove(request.member_id)
            return HeartbeatAnswer(code=0 if known else UNKNOWN_MEMBER_ID, epoch=request.epoch)
        if request.epoch == 0:
            if request.topics is None or request.rebalance_timeout_s is None or request.owned:
                return HeartbeatAnswer(code=INVALID_REQUEST, message="a join says all")
            if request.member_id not in self.members:
                self.epoch += 1
                self.members[request.member_id] = KnownMember()
        member = self.members.get(request.member_id)
        if member is None:
            return HeartbeatAnswer(code=UNKNOWN_MEMBER_ID)
        owned = None if request.owned is None else {number for _, number in request.owned}
        if not _is_valid(member, request.epoch, owned):
            return HeartbeatAnswer(code=FENCED)
        member.seen_s = now_s
        before = member.epoch, set(member.assigned)
        self._reconcile(request.member_id, member, owned, now_s)
        is_full = request.rebalance_timeout_s is not None and request.owned is not None
        has_changed = is_full or before[1] != member.assigned
        return HeartbeatAnswer(
            code=0,
            member_id=request.member_id,
            epoch=member.epoch,
            interval_s=1.0,
            assignment=_entries(member.assigned) if has_changed else None,
        )

    def _reconcile(
        self, member_id: str, member: KnownMember, owned: set[int] | None, now_s: float
    ) -> None:
        if member.pending and (owned is None or owned & member.pending):
            return
        member.pending = set()
        target = self.target(member_id)
        gone = member.assigned - target
        if gone and (owned is None or owned & gone):
            member.assigned -= gone
            member.pending, member.asked_s = gone, now_s
            return
        taken = {
            number
            for other_id, other in self.members.items()
            if other_id != member_id
            for number in other.assigned | other.pending
        }
        member.assigned = target - taken
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch


def _is_valid(member: KnownMember, epoch: int, owned: set[int] | None) -> bool:
    if epoch == member.epoch:
        return True
    if epoch > member.epoch or epoch != member.previous_epoch or owned is None:
        return False
    return owned <= member.assigned


def _entries(numbers: Iterable[int]) -> tuple[tuple[UUID, int, None], ...]:
    return tuple((TOPIC_ID, number, None) for number in sorted(numbers))
