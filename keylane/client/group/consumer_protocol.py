"""A member of a group of the consumer protocol (KIP-848), without I/O.

In: answers, failures, the time, and the consumer's wishes. Out: the next heartbeat to send, and
effects (`effects`). Every method that takes `now_s` may be called at any time, in any order.
Source: KIP-848, "Member States" and "Consumer Group Heartbeat"; the codes as Kafka's own consumer
takes them (ConsumerHeartbeatRequestManager), but for those named at `_refused`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from keylane.client.group.codes import (
    ENDED,
    LOADING,
    MOVED,
    RETRIABLE,
    UNKNOWN_MEMBER_ID,
    UNRELEASED_INSTANCE_ID,
)
from keylane.client.group.effects import (
    CoordinatorMoved,
    Effect,
    Effects,
    GroupFailed,
    GroupRefused,
)
from keylane.client.group.heartbeats import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    AssignedPart,
    HeartbeatAnswer,
    HeartbeatRequest,
)
from keylane.client.group.held_parts import HeldPart, HeldParts
from keylane.client.group.pauses import Pauses
from keylane.client.group.settings import GroupSettings, GroupTopics, MemberIdentity
from keylane.client.values import TopicPartition

INTERVAL_S: Final = 1.0
"""Between heartbeats until the coordinator has named its interval."""
MARGIN_PART: Final = 0.1
"""Of the rebalance time-out: parts are lost before it by this, or by an interval if that is less,
for the coordinator must have the heartbeat without them in time."""


class TopicNames(Protocol):
    """Names of topics by their ids, from metadata."""

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name; None: it is not known yet."""
        ...


class MemberPhase(Enum):
    """Phase of a membership."""

    IDLE = auto()
    """In no group: nothing is subscribed, or the member has left."""
    JOINING = auto()
    STABLE = auto()
    LEAVING = auto()
    """A heartbeat that leaves is to be sent, or is on its way."""
    STALE = auto()
    """Left because the application did not poll; the next poll joins again."""
    FATAL = auto()
    """Refused; a new subscription begins anew."""


class Reported(NamedTuple):
    """Fields that the coordinator keeps of a member from one heartbeat to the next."""

    subscribed: GroupTopics
    owned: frozenset[tuple[UUID, int]]


@dataclass(frozen=True, slots=True)
class _Sent:
    life: int
    at_s: float
    reported: Reported


class ConsumerMember:
    """One member.

        IDLE --subscribe--> JOINING --answer--> STABLE --session over, no poll, leave--> LEAVING
                               ^                  |                                        |
                               +-- ended, fenced -+         IDLE, STALE or JOINING <-------+

    A session that is over by the member's own clock means that another member may have its parts:
    all are lost, and the member first leaves, then joins, for the coordinator may still have it.
    So it is where the coordinator did not answer a heartbeat without what it has asked back, within
    the rebalance time-out.
    """

    def __init__(
        self,
        settings: GroupSettings,
        member_id: str,
        names: TopicNames,
        *,
        now_s: float,
        asks_ranges: bool = True,
    ) -> None:
        """member_id: a new UUID; asks_ranges: the cluster understands keylane's tags."""
        self._settings, self._names, self._asks_ranges = settings, names, asks_ranges
        self._member_id, self._epoch = member_id, JOIN_EPOCH
        self._effects = Effects()
        self.held = HeldParts(self._effects)
        self._subscribed = GroupTopics(settings.topics, settings.pattern)
        self.phase = MemberPhase.IDLE if self._subscribed.is_empty else MemberPhase.JOINING
        self._after_leave = MemberPhase.IDLE
        self._pauses = Pauses(member_id)
        self._assignment: tuple[AssignedPart, ...] | None = None
        self._sent: _Sent | None = None
        self._reported: Reported | None = None  # None: the next heartbeat says all
        self._life = 0
        self._due_s, self._interval_s = now_s, INTERVAL_S
        self._session_s = math.inf
        # Parts that are asked back, until the coordinator has answered a heartbeat without them:
        # at this time it ends the member, and gives all that it has to others.
        self._fences_s: dict[tuple[UUID, int], float] = {}
        self._polled_s = now_s
        self._unreleased_since_s: float | None = None
        self._ended_s = -math.inf
        self.has_joined = False
        self._is_known = False  # the coordinator may have the member

    # -- state ------------------------------------------------------------------------------

    @property
    def member(self) -> MemberIdentity:
        """Identity for other requests."""
        epoch = self._epoch if self.phase is MemberPhase.STABLE else -1
        group_id, instance_id = self._settings.group_id, self._settings.instance_id
        return MemberIdentity(group_id, self._member_id, epoch, instance_id)

    @property
    def topics_unknown(self) -> frozenset[UUID]:
        """Ids of assigned topics whose name is not known: metadata is to be read."""
        topic_ids = {topic_id for topic_id, _, _ in self._assignment or ()}
        return frozenset(each for each in topic_ids if self._names.topic_name(each) is None)

    @property
    def is_settled(self) -> bool:
        """True: the coordinator has it at an epoch, or it is out."""
        return self.phase is MemberPhase.STABLE or self.is_out

    @property
    def is_out(self) -> bool:
        """True: nothing more is to be sent before the consumer wishes something."""
        return self.phase in (MemberPhase.IDLE, MemberPhase.STALE, MemberPhase.FATAL)

    @property
    def next_s(self) -> float:
        """Time of the next `tick` or request; infinite: none."""
        times = [self.held.next_deadline_s]
        if self.phase in (MemberPhase.JOINING, MemberPhase.STABLE):
            times.append(self._polled_s + self._settings.rebalance_timeout_s)
            times += [self._session_s, *self._fences_s.values()]
        if self._sent is None and not self.is_out:
            times.append(max(self._due_s, self._pauses.until_s))
        return min(times)

    def take_effects(self) -> list[Effect]:
        """Return what has happened since the last call."""
        return self._effects.take()

    # -- the consumer's wishes --------------------------------------------------------------

    def subscribe(self, subscribed: GroupTopics, now_s: float) -> None:
        """Change the subscription; an empty one leaves the group."""
        if subscribed.is_empty:
            self._subscribed = subscribed
            self.leave(now_s)
            return
        is_new, self._subscribed = subscribed != self._subscribed, subscribed
        if self.phase in (MemberPhase.IDLE, MemberPhase.FATAL):
            self._polled_s = now_s
            self._begin_join(now_s)
        elif self.phase is MemberPhase.LEAVING:
            self._after_leave = MemberPhase.JOINING
        elif is_new:
            self._due_s = now_s

    def release(self, parts: Iterable[TopicPartition], now_s: float) -> None:
        """Give up parts that were asked back; others stay as they are."""
        if self.held.release(parts):
            self._due_s = now_s

    def note_poll(self, now_s: float) -> None:
        """Note that the application lives; a member that had left for that joins again."""
        self._polled_s = now_s
        if self.phase is MemberPhase.STALE:
            self._begin_join(now_s)
        elif self.phase is MemberPhase.LEAVING and self._after_leave is MemberPhase.STALE:
            self._after_leave = MemberPhase.JOINING

    def rejoin(self, now_s: float) -> None:
        """Say all again at once: another request was refused for the member's sake."""
        self._reported = None
        self._due_s = now_s

    def give_way(self, now_s: float) -> None:
        """Lose all, leave, and join anew: another member may begin what this one did not end."""
        if self.phase in (MemberPhase.JOINING, MemberPhase.STABLE):
            self.held.lose_all()
            self._begin_leave(MemberPhase.JOINING, now_s)

    def leave(self, now_s: float) -> None:
        """Give all up without an effect, and leave."""
        self.held.give_up_all()
        self._begin_leave(MemberPhase.IDLE, now_s)

    # -- time and answers -------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Do what is due: lose what was not released in time, a session, or the whole group."""
        if self.held.expire(now_s):
            self._due_s = now_s
        if self.phase not in (MemberPhase.JOINING, MemberPhase.STABLE):
            return
        if now_s >= self._polled_s + self._settings.rebalance_timeout_s:
            self.held.lose_all()
            self._begin_leave(MemberPhase.STALE, now_s)
        elif now_s >= min((self._session_s, *self._fences_s.values())):
            self.held.lose_all()
            self._begin_leave(MemberPhase.JOINING, now_s)

    def request(self, now_s: float) -> HeartbeatRequest | None:
        """Return the heartbeat to send now; None: one is on its way, or none is due."""
        if self._sent is not None or self.is_out:
            return None
        if now_s < max(self._due_s, self._pauses.until_s):
            return None
        reported = Reported(self._subscribed, self._owned_ids())
        epoch = self._epoch
        if self.phase is MemberPhase.LEAVING:
            epoch = LEAVE_EPOCH if self._settings.instance_id is None else STATIC_LEAVE_EPOCH
        elif epoch == JOIN_EPOCH:
            # The session of a member begins at the coordinator before the answer is here.
            self._session_s = now_s + self._settings.session_timeout_s
            self._is_known = True
        self._sent = _Sent(self._life, now_s, reported)
        return self._build(epoch, reported)

    def answered(self, answer: HeartbeatAnswer, now_s: float) -> None:
        """Take the answer to the heartbeat that is on its way."""
        self.tick(now_s)  # an answer that comes after its session is none
        sent, self._sent = self._sent, None
        if sent is None or sent.life != self._life:
            return  # the member has lost or left what this is about
        if self.phase is MemberPhase.LEAVING:
            self._left(answer.code, now_s)
        elif answer.code == 0:
            self._accept(sent, answer, now_s)
        else:
            self._refused(answer, now_s)

    def failed(self, now_s: float) -> None:
        """Note that the heartbeat has no answer: the connection broke, or time is up."""
        sent, self._sent = self._sent, None
        self._effects.add(CoordinatorMoved())
        if sent is not None and sent.life != self._life:
            return
        self._reported = None
        self._pauses.begin(now_s)
        if self.phase is MemberPhase.JOINING:
            self._session_s = math.inf
        if self.phase is MemberPhase.LEAVING and self._after_leave is not MemberPhase.JOINING:
            self._end_leave(now_s)  # one attempt: the session's end does the rest

    def names_changed(self, now_s: float) -> None:
        """Take parts whose topic's name has become known."""
        if self.phase is MemberPhase.STABLE:
            self._reconcile(now_s, now_s)

    # -- inside -----------------------------------------------------------------------------

    def _build(self, epoch: int, reported: Reported) -> HeartbeatRequest:
        settings, before = self._settings, self._reported
        share = settings.allow_individual_commit
        is_member = epoch >= JOIN_EPOCH
        says_all = is_member and before is None
        subscribed = reported.subscribed
        is_other = before is not None and before.subscribed != subscribed
        says_owned = says_all or (before is not None and before.owned != reported.owned)
        pattern = subscribed.pattern if says_all else None
        if is_member and before is not None and before.subscribed.pattern != subscribed.pattern:
            pattern = subscribed.pattern or ""
        return HeartbeatRequest(
            group_id=settings.group_id,
            member_id=self._member_id,
            epoch=epoch,
            instance_id=settings.instance_id,
            rack=settings.rack if says_all else None,
            rebalance_timeout_s=settings.rebalance_timeout_s if says_all else None,
            topics=subscribed.topics if is_member and (says_all or is_other) else None,
            pattern=pattern,
            server_assignor=settings.server_assignor if says_all else None,
            owned=reported.owned if is_member and says_owned else None,
            asks_ranges=self._asks_ranges and is_member,
            allow_key_share=share if says_all and self._asks_ranges else None,
        )

    def _owned_ids(self) -> frozenset[tuple[UUID, int]]:
        return frozenset(_id_of(held) for held in self.held.owned.values())

    def _accept(self, sent: _Sent, answer: HeartbeatAnswer, now_s: float) -> None:
        self._pauses.end()
        self._unreleased_since_s = None
        self.phase, self.has_joined = MemberPhase.STABLE, True
        self._epoch = answer.epoch
        self._member_id = answer.member_id or self._member_id
        self._interval_s = answer.interval_s or self._interval_s
        self._session_s = sent.at_s + self._settings.session_timeout_s
        self._reported = sent.reported
        self._fences_s = {
            each: at_s for each, at_s in self._fences_s.items() if each in sent.reported.owned
        }
        self._due_s = sent.at_s + self._interval_s
        if answer.assignment is not None:
            self._assignment = answer.assignment
            self._reconcile(now_s, sent.at_s)
        if Reported(self._subscribed, self._owned_ids()) != self._reported:
            self._due_s = now_s

    def _reconcile(self, now_s: float, asked_s: float) -> None:
        """Take the assignment; the coordinator's clock began no earlier than `asked_s`."""
        target = []
        for topic_id, partition, lane in self._assignment or ():
            name = self._names.topic_name(topic_id)
            if name is not None:
                target.append(HeldPart(TopicPartition(name, partition), topic_id, lane))
        fence_s = asked_s + self._settings.rebalance_timeout_s
        margin_s = min(self._interval_s, MARGIN_PART * self._settings.rebalance_timeout_s)
        self.held.set_target(target, deadline_s=fence_s - margin_s)
        given = {(topic_id, partition) for topic_id, partition, _ in self._assignment or ()}
        asked = {_id_of(self.held.owned[part]) for part in self.held.revoking}
        fences_s = dict.fromkeys(asked, fence_s) | self._fences_s
        self._fences_s = {each: at_s for each, at_s in fences_s.items() if each not in given}
        if self._reported is not None and self._owned_ids() != self._reported.owned:
            self._due_s = now_s

    def _refused(self, answer: HeartbeatAnswer, now_s: float) -> None:
        """Take an error.

        Of a static member whose instance id is in use: the member before it may have died, so the
        join is repeated for a session time before it is fatal. Kafka's consumer ends at once.
        """
        code, was_joining = answer.code, self.phase is MemberPhase.JOINING
        self._reported = None
        if was_joining:
            self._session_s = math.inf
        if code in ENDED:
            self._is_known = code != UNKNOWN_MEMBER_ID
            self.held.lose_all()
            if was_joining or now_s < self._ended_s + self._interval_s:
                self._pauses.begin(now_s)  # else joins and ends would follow each other at once
            else:
                self._pauses.end()
            self._ended_s = now_s
            if was_joining and self._is_known:
                self._begin_leave(MemberPhase.JOINING, now_s)  # it has this member at an epoch
            else:
                self._begin_join(now_s)
        elif code in LOADING | MOVED | RETRIABLE:
            if code not in LOADING:
                self._effects.add(CoordinatorMoved())
            self._pauses.begin(now_s)
        elif code == UNRELEASED_INSTANCE_ID and self._may_wait(now_s):
            self._pauses.begin(now_s)
        else:
            self._fail(answer)

    def _may_wait(self, now_s: float) -> bool:
        if self._unreleased_since_s is None:
            self._unreleased_since_s = now_s
        waited_s = now_s - self._unreleased_since_s
        return self.phase is MemberPhase.JOINING and waited_s < self._settings.session_timeout_s

    def _fail(self, answer: HeartbeatAnswer) -> None:
        self.held.lose_all()
        self._new_life(MemberPhase.FATAL)
        error = GroupRefused(self._settings.group_id, answer.code, answer.name, answer.message)
        self._effects.add(GroupFailed(error))

    def _begin_join(self, now_s: float) -> None:
        self._new_life(MemberPhase.JOINING)
        self._due_s = now_s

    def _begin_leave(self, then: MemberPhase, now_s: float) -> None:
        if self.phase is MemberPhase.LEAVING:
            self._after_leave = then
            return
        if not self._is_known:
            self._new_life(then)
            return
        self._after_leave = then
        self._new_life(MemberPhase.LEAVING)
        self._due_s = now_s

    def _left(self, code: int, now_s: float) -> None:
        if self._after_leave is MemberPhase.JOINING and code in LOADING | MOVED | RETRIABLE:
            self._effects.add(CoordinatorMoved())
            self._pauses.begin(now_s)
            return
        self._pauses.end()
        self._is_known = False
        self._end_leave(now_s)

    def _end_leave(self, now_s: float) -> None:
        if self._after_leave is MemberPhase.JOINING:
            self._begin_join(now_s)
        else:
            self._new_life(self._after_leave)

    def _new_life(self, phase: MemberPhase) -> None:
        """Begin a phase in which the member has nothing, and no older answer counts."""
        self.phase, self._epoch = phase, JOIN_EPOCH
        self._life += 1
        self._reported, self._assignment = None, None
        self._session_s, self._fences_s = math.inf, {}


def _id_of(held: HeldPart) -> tuple[UUID, int]:
    assert held.topic_id is not None
    return held.topic_id, held.part.partition
