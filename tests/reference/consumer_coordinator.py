"""Naive twin of Kafka's coordinator of consumer groups (KIP-848): one group, on a made-up clock.

Source: Apache Kafka 4.3, `GroupMetadataManager` (consumerGroupHeartbeat, consumerGroupLeave,
maybeUpdateTargetAssignment), `CurrentAssignmentBuilder`, `ConsumerGroup` (validateOffsetCommit,
validateOffsetFetch); KIP-848, KIP-1251. Left out: patterns, racks, and members of the classic
protocol in these groups.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.reference.group_coordinator import UNKNOWN_MEMBER_ID, At, Reply

INVALID_REQUEST, GROUP_ID_NOT_FOUND, FENCED_INSTANCE_ID = 42, 69, 82
FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID = 110, 111
UNSUPPORTED_ASSIGNOR, STALE_MEMBER_EPOCH, UNSUPPORTED_VERSION = 112, 113, 35
JOIN_EPOCH, LEAVE_EPOCH, AWAY_EPOCH = 0, -1, -2
ASSIGNORS = ("uniform", "range")
UNKNOWN_EPOCH = -1
EPOCHS_FROM = 9
"""Version of OffsetCommit from which members of these groups commit."""
Part = tuple[uuid.UUID, int]
Parts = frozenset[Part]
NO_PARTS: Parts = frozenset()
FindTopic = Callable[[str], tuple[uuid.UUID, int] | None]
"""Id and number of partitions of a topic."""


@dataclass(kw_only=True)
class Times:
    """The group's configuration."""

    session_s: float = 45.0
    heartbeat_s: float = 5.0
    assignment_s: float = 1.0
    """`group.consumer.assignment.interval.ms`."""
    keeps_epochs: bool = False
    """A partition keeps the epoch at which it was assigned (KIP-1251). A 4.3.1 broker with its
    default features has all of them from the member's last record, and refuses older epochs."""


@dataclass
class ConsumerMember:
    """One member, all of which is stored."""

    member_id: str
    instance_id: str | None = None
    names: tuple[str, ...] = ()
    rebalance_s: float = 0.0
    epoch: int = JOIN_EPOCH
    previous_epoch: int = UNKNOWN_EPOCH
    assigned: dict[Part, int] = field(default_factory=dict)
    """Partitions with the epochs at which they were assigned."""
    revoking: dict[Part, int] = field(default_factory=dict)
    is_waiting: bool = False
    """Partitions that it is to get are not released (UNRELEASED_PARTITIONS)."""
    beat: int = 0
    """Counts what restarted the session's timer."""

    def is_stable(self, target_epoch: int) -> bool:
        """Return whether it has all of the target."""
        return self.epoch == target_epoch and not self.revoking and not self.is_waiting


class ConsumerTwin:
    """One consumer group at its coordinator."""

    def __init__(self, at: At, now_s: Callable[[], float], find_topic: FindTopic) -> None:
        self._after, self._now_s, self._find_topic = at, now_s, find_topic
        self._life = 0
        self._ids = itertools.count(1)
        self.times = Times()
        self.members: dict[str, ConsumerMember] = {}
        self.epoch = self.target_epoch = 0
        self.target: dict[str, Parts] = {}
        self._targeted_s = float("-inf")
        self.on_member: Callable[[str, bool], None] = lambda *_: None
        """Called with a member's id, and whether it is there now, at each join and each end."""

    @property
    def is_known(self) -> bool:
        """Return whether any member has ever joined it."""
        return self.epoch > 0

    def fail_over(self, load_s: float) -> None:
        """Another coordinator loads it: sessions begin anew."""
        self._life += 1

        def loaded() -> None:
            for member in self.members.values():
                self._restart_session(member)

        self._at(load_s, loaded)

    # Heartbeats.
    def heartbeat(self, request: Any, reply: Reply, *, version: int) -> None:
        """Take a heartbeat in."""
        code = self._invalid(request, version) or self._refusal(request)
        if code:
            reply({"error_code": code})
        elif request.member_epoch < JOIN_EPOCH:
            self._leave(request, reply)
        else:
            self._take(request, reply)

    @staticmethod
    def _invalid(request: Any, version: int) -> int:
        """Return the error of a request that no member may send; 0: it may be sent."""
        epoch, has_names = request.member_epoch, request.subscribed_topic_names is not None
        needs_id = version >= 1 or epoch != JOIN_EPOCH
        is_join_whole = (
            request.rebalance_timeout.total_seconds() > 0
            and request.topic_partitions == ()
            and has_names
        )
        if (
            (needs_id and not request.member_id)
            or (epoch == JOIN_EPOCH and not is_join_whole)
            or (epoch == AWAY_EPOCH and request.instance_id is None)
            or epoch < AWAY_EPOCH
        ):
            return INVALID_REQUEST
        if request.server_assignor not in {None, *ASSIGNORS}:
            return UNSUPPORTED_ASSIGNOR
        return 0

    def _refusal(self, request: Any) -> int:
        """Return the error of a request of this member now; 0: it is taken."""
        epoch, member_id = int(request.member_epoch), str(request.member_id)
        if not self.is_known:
            return 0 if epoch == JOIN_EPOCH else GROUP_ID_NOT_FOUND
        placed = self._of_instance(request.instance_id)
        if placed is not None and epoch == JOIN_EPOCH:
            return 0 if placed.epoch == AWAY_EPOCH else UNRELEASED_INSTANCE_ID
        if placed is not None and placed.member_id != member_id:
            return FENCED_INSTANCE_ID
        known = self.members.get(member_id)
        is_new_instance = request.instance_id is not None and placed is None
        if epoch != JOIN_EPOCH and (known is None or is_new_instance):
            return UNKNOWN_MEMBER_ID
        if known is None or epoch < JOIN_EPOCH or known.epoch == AWAY_EPOCH:
            return 0
        return self._epoch_error(known, epoch, request.topic_partitions)

    @staticmethod
    def _epoch_error(member: ConsumerMember, epoch: int, owned: Any) -> int:
        """Return FENCED_MEMBER_EPOCH unless it is current, or its last answer may have got lost."""
        if epoch == member.epoch:
            return 0
        is_lost = epoch == member.previous_epoch and owned is not None
        is_lost = is_lost and parts_of(owned) <= member.assigned.keys()
        return 0 if epoch < member.epoch and is_lost else FENCED_MEMBER_EPOCH

    def _of_instance(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def _take(self, request: Any, reply: Reply) -> None:
        self.epoch = self.epoch or 1  # it is made so, and the first join moves it on
        member = self._member_of(request)
        before = frozenset(member.assigned)
        if request.rebalance_timeout.total_seconds() > 0:
            member.rebalance_s = request.rebalance_timeout.total_seconds()
        names = request.subscribed_topic_names
        if names is not None and tuple(sorted(map(str, names))) != member.names:
            member.names = tuple(sorted(map(str, names)))
            self.epoch += 1
        self._update_target()
        owned = request.topic_partitions
        self._reconcile(member, None if owned is None else parts_of(owned))
        self._restart_session(member)
        is_full = member.epoch and owned is not None and names is not None
        is_full = is_full and request.rebalance_timeout.total_seconds() > 0
        is_asked = request.member_epoch == JOIN_EPOCH or is_full
        answer: dict[str, Any] = {
            "member_id": member.member_id, "member_epoch": member.epoch,
            "heartbeat_interval": round(1000 * self.times.heartbeat_s),
        }  # fmt: skip
        if is_asked or frozenset(member.assigned) != before:
            answer["assignment"] = {"topic_partitions": topics_of(member.assigned)}
        reply(answer)

    def _member_of(self, request: Any) -> ConsumerMember:
        """Return the member that speaks; one that joins is made."""
        member_id, instance_id = str(request.member_id), request.instance_id
        member_id = member_id or f"consumer-{next(self._ids)}"
        placed = self._of_instance(instance_id)
        if placed is not None and placed.member_id == member_id and placed.epoch == AWAY_EPOCH:
            placed.epoch, placed.previous_epoch = JOIN_EPOCH, UNKNOWN_EPOCH
            return placed
        if placed is not None and placed.member_id != member_id:
            return self._replace(placed, member_id)
        if member_id not in self.members:
            self.members[member_id] = ConsumerMember(member_id, instance_id)
            self.on_member(member_id, True)
        return self.members[member_id]

    def _replace(self, placed: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back under another id, and has the place of the one that went."""
        del self.members[placed.member_id]
        self.on_member(placed.member_id, False)
        if placed.member_id in self.target:
            self.target[member_id] = self.target.pop(placed.member_id)
        member = ConsumerMember(
            member_id, placed.instance_id, names=placed.names, assigned=dict(placed.assigned)
        )
        self.members[member_id] = member
        self.on_member(member_id, True)
        return member

    def _leave(self, request: Any, reply: Reply) -> None:
        member = self.members[str(request.member_id)]
        if request.member_epoch == AWAY_EPOCH:
            member.epoch, member.previous_epoch = AWAY_EPOCH, UNKNOWN_EPOCH
            member.revoking = {}
            self._restart_session(member)
        else:
            self._remove(member)
        epoch = int(request.member_epoch)
        reply({"member_id": member.member_id, "member_epoch": epoch, "heartbeat_interval": 0})

    # Assignments.
    def _update_target(self) -> None:
        """Compute the target of a new epoch, at most once in a time."""
        now_s = self._now_s()
        if self.epoch == self.target_epoch or now_s - self._targeted_s < self.times.assignment_s:
            return
        parts: dict[Part, list[str]] = {}
        for member_id, member in sorted(self.members.items()):
            for name in member.names:
                found = self._find_topic(name)
                for index in range(found[1] if found else 0):
                    assert found is not None
                    parts.setdefault((found[0], index), []).append(member_id)
        counts = dict.fromkeys(self.members, 0)
        most = -(-len(parts) // max(1, len(self.members)))
        target: dict[str, set[Part]] = {member_id: set() for member_id in self.members}
        for part, takers in sorted(parts.items()):
            kept = [m for m in takers if part in self.target.get(m, ()) and counts[m] < most]
            taker = kept[0] if kept else min(takers, key=lambda each: (counts[each], each))
            counts[taker] += 1
            target[taker].add(part)
        self.target = {member_id: frozenset(found) for member_id, found in target.items()}
        self.target_epoch, self._targeted_s = self.epoch, now_s

    def _reconcile(self, member: ConsumerMember, owned: Parts | None) -> None:
        """Lead a member towards the target: `CurrentAssignmentBuilder.build`."""
        epoch = member.epoch
        if member.revoking:
            if owned is None or owned & member.revoking.keys():
                return
            epoch = min(epoch + 1, self.target_epoch)
        elif member.is_stable(self.target_epoch):
            return
        target = self.target.get(member.member_id, NO_PARTS)
        kept = {part: since for part, since in member.assigned.items() if part in target}
        revoking = {part: since for part, since in member.assigned.items() if part not in target}
        if revoking and (owned is None or owned & revoking.keys()):
            self._move(member, epoch)
            member.assigned, member.revoking, member.is_waiting = kept, revoking, False
            return
        taken = {
            part
            for other in self.members.values()
            if other is not member
            for part in (*other.assigned, *other.revoking)
        }
        wanted = target - kept.keys()
        member.is_waiting = bool(wanted & taken)
        self._move(member, self.target_epoch)
        member.revoking = {}
        member.assigned = kept | dict.fromkeys(sorted(wanted - taken), member.epoch)

    @staticmethod
    def _move(member: ConsumerMember, epoch: int) -> None:
        if epoch != member.epoch:
            member.previous_epoch, member.epoch = member.epoch, epoch

    # Offsets.
    def commit_refusal(
        self, member_id: str, epoch: int, version: int
    ) -> tuple[int, Callable[[Part], int]]:
        """Return the error of a commit, and a judge of its partitions; 0: they are taken."""

        def taken(_part: Part) -> int:
            return 0

        if epoch < 0 and not self.members:
            return 0, taken
        member = self.members.get(member_id)
        if member is None:
            return UNKNOWN_MEMBER_ID, taken
        if version < EPOCHS_FROM:
            return UNSUPPORTED_VERSION, taken
        if epoch > member.epoch:
            return STALE_MEMBER_EPOCH, taken
        if epoch == member.epoch:
            return 0, taken
        since = {**member.assigned, **member.revoking} if self.times.keeps_epochs else {}
        return 0, lambda part: 0 if since.get(part, epoch + 1) <= epoch else STALE_MEMBER_EPOCH

    def fetch_refusal(self, member_id: str | None, epoch: int) -> int:
        """Return the error of a question for offsets; 0: it is answered."""
        if member_id is None and epoch < 0:
            return 0
        member = self.members.get(member_id or "")
        if member is None:
            return UNKNOWN_MEMBER_ID
        return 0 if epoch == member.epoch else STALE_MEMBER_EPOCH

    # Descriptions.
    def describe(self, names: Callable[[uuid.UUID], str]) -> dict[str, Any]:
        """Return the group as ConsumerGroupDescribe has it."""

        def assignment(parts: Iterable[Part]) -> dict[str, Any]:
            topics = [{**each, "topic_name": names(each["topic_id"])} for each in topics_of(parts)]
            return {"topic_partitions": topics}

        members = [
            {
                "member_id": each.member_id, "instance_id": each.instance_id,
                "member_epoch": each.epoch,
                "subscribed_topic_names": each.names, "assignment": assignment(each.assigned),
                "target_assignment": assignment(self.target.get(each.member_id, NO_PARTS)),
                "member_type": 1,
            }
            for each in self.members.values()
        ]  # fmt: skip
        return {
            "group_state": self.state, "group_epoch": self.epoch, "members": members,
            "assignment_epoch": self.target_epoch, "assignor_name": ASSIGNORS[0],
        }  # fmt: skip

    @property
    def state(self) -> str:
        """Return the state's name in answers."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        is_stable = all(each.is_stable(self.target_epoch) for each in self.members.values())
        return "Stable" if is_stable else "Reconciling"

    # Ends.
    def _remove(self, member: ConsumerMember) -> None:
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        self.epoch += 1
        self.on_member(member.member_id, False)

    def _at(self, seconds: float, do: Callable[[], None]) -> None:
        life = self._life
        self._after(seconds, lambda: do() if self._life == life else None)

    def _restart_session(self, member: ConsumerMember) -> None:
        member.beat += 1
        beat = member.beat

        def expired() -> None:
            if self.members.get(member.member_id) is member and member.beat == beat:
                self._remove(member)

        self._at(self.times.session_s, expired)


def parts_of(topics: Iterable[Any]) -> Parts:
    """Return the partitions of kio entries."""
    return frozenset((each.topic_id, int(index)) for each in topics for index in each.partitions)


def topics_of(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """Return values of kio entries."""
    by_topic: dict[uuid.UUID, list[int]] = {}
    for topic_id, index in sorted(parts):
        by_topic.setdefault(topic_id, []).append(index)
    return [{"topic_id": each, "partitions": indexes} for each, indexes in by_topic.items()]
