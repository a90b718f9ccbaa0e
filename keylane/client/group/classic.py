"""A member of a classic group (JoinGroup, SyncGroup), cooperative, without I/O.

In: answers, failures, the time, the consumer's wishes, partition counts for a plan. Out: the next
request, and effects. Every method that takes `now_s` may be called at any time, in any order.
A part that the plan takes away stays in the member's hands until it is released; then the member
joins again, which moves it. Heartbeats go on meanwhile, and a rebalance that begins is joined with
all that is still held.
Source: KIP-429 (cooperative rebalance), KIP-345, KIP-394; codes as ConsumerCoordinator takes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from keylane.assignor.model import NO_GENERATION
from keylane.assignor.protocol import read_assignment
from keylane.client.group.classic_calls import (
    ClassicAnswer,
    ClassicBeat,
    ClassicCall,
    ClassicJoin,
    ClassicLeave,
    ClassicSync,
)
from keylane.client.group.classic_plan import (
    JoinedMember,
    plan_generation,
    subscribed_topics,
    subscription_bytes,
)
from keylane.client.group.codes import LOADING, MOVED, RETRIABLE, UNKNOWN_MEMBER_ID
from keylane.client.group.effects import (
    CoordinatorMoved,
    Effect,
    Effects,
    GroupFailed,
    GroupRefused,
)
from keylane.client.group.held_parts import HeldPart, HeldParts
from keylane.client.group.pauses import Pauses
from keylane.client.group.settings import GroupSettings, GroupTopics, MemberIdentity
from keylane.client.values import TopicPartition

ILLEGAL_GENERATION: Final = 22
REBALANCE_IN_PROGRESS: Final = 27
MEMBER_ID_REQUIRED: Final = 79
FENCED: Final = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID})


class ClassicPhase(Enum):
    """Phase of a membership."""

    IDLE = auto()
    JOINING = auto()
    PLANNING = auto()
    """Leads the generation, and waits for partition counts."""
    SYNCING = auto()
    STABLE = auto()
    LEAVING = auto()
    STALE = auto()
    """Left because the application did not poll; the next poll joins again."""
    FATAL = auto()


@dataclass(frozen=True, slots=True)
class _Sent:
    call: ClassicCall
    life: int
    at_s: float


MOVING: Final = (ClassicPhase.JOINING, ClassicPhase.PLANNING, ClassicPhase.SYNCING)
"""The coordinator may have a generation that the member has no assignment of."""


class ClassicMember:
    """One member.

        IDLE -> JOINING -> (PLANNING ->) SYNCING -> STABLE
                   ^                        |          |   rebalance, released, subscription
                   +------------------------+----------+
                 any -> LEAVING -> IDLE | STALE

    While a join waits for other members, the coordinator counts no session, so the member does not
    either: it waits for the rebalance time-out, as Kafka's consumer does.
    """

    def __init__(self, settings: GroupSettings, identity: str, *, now_s: float) -> None:
        """identity: spreads pauses; the coordinator gives the member its id."""
        self._settings = settings
        self._effects = Effects()
        self.held = HeldParts(self._effects)
        self._subscribed = GroupTopics(settings.topics, settings.pattern)
        self.phase = ClassicPhase.IDLE if self._subscribed.is_empty else ClassicPhase.JOINING
        self._after_leave = ClassicPhase.IDLE
        self._pauses = Pauses(identity)
        self._member_id, self._generation_id = "", NO_GENERATION
        self._owned_generation_id = NO_GENERATION
        self._claimed: frozenset[TopicPartition] = frozenset()
        self._moving: frozenset[TopicPartition] = frozenset()
        self._joined: tuple[JoinedMember, ...] = ()
        self._assignments: tuple[tuple[str, bytes], ...] = ()
        self._sent: _Sent | None = None
        self._life = 0
        self._due_s, self._polled_s = now_s, now_s
        # When the newest answered request was sent, and the newest one of a generation at rest.
        self._answered_s, self._settled_s = math.inf, math.inf
        self.has_joined = False

    # -- state ------------------------------------------------------------------------------

    @property
    def member(self) -> MemberIdentity:
        """Identity for other requests: the generation in which the parts were assigned."""
        group_id, instance_id = self._settings.group_id, self._settings.instance_id
        generation_id = self._owned_generation_id
        is_moving = generation_id != NO_GENERATION and self.phase in MOVING
        return MemberIdentity(group_id, self._member_id, generation_id, instance_id, is_moving)

    @property
    def topics_to_count(self) -> frozenset[str]:
        """Topics whose partition counts `counted` waits for; empty: it does not."""
        if self.phase is not ClassicPhase.PLANNING:
            return frozenset()
        return subscribed_topics(self._joined)

    @property
    def topics_led(self) -> frozenset[str]:
        """Topics of the generation that this member planned; their counts may change."""
        return subscribed_topics(self._joined) if self.phase is ClassicPhase.STABLE else frozenset()

    @property
    def is_settled(self) -> bool:
        """True: it has its assignment, or is out."""
        return self.phase is ClassicPhase.STABLE or self.is_out

    @property
    def is_out(self) -> bool:
        """True: nothing more is to be sent before the consumer wishes something."""
        return self.phase in (ClassicPhase.IDLE, ClassicPhase.STALE, ClassicPhase.FATAL)

    @property
    def next_s(self) -> float:
        """Time of the next `tick` or request; infinite: none."""
        times = [self.held.next_deadline_s]
        if not self.is_out and self.phase is not ClassicPhase.LEAVING:
            times += [self._polled_s + self._settings.rebalance_timeout_s, self._lost_s]
        if self._sent is None and not self.is_out and self.phase is not ClassicPhase.PLANNING:
            times.append(max(self._due_s, self._pauses.until_s))
        return min(times)

    def take_effects(self) -> list[Effect]:
        """Return what has happened since the last call."""
        return self._effects.take()

    @property
    def _lost_s(self) -> float:
        """Time at which the coordinator may give the member's parts to others."""
        session_s = self._settings.session_timeout_s
        rebalance_s = self._settings.rebalance_timeout_s
        sent = self._sent
        if sent is not None and isinstance(sent.call, ClassicJoin) and sent.life == self._life:
            return sent.at_s + max(session_s, rebalance_s) if self.held.owned else math.inf
        return min(self._answered_s + session_s, self._settled_s + rebalance_s)

    # -- the consumer's wishes --------------------------------------------------------------

    def subscribe(self, subscribed: GroupTopics, now_s: float) -> None:
        """Change the topics; an empty subscription leaves.

        The topics are all that the member wants: the caller adds those that the pattern matches.
        """
        is_new, self._subscribed = subscribed.topics != self._subscribed.topics, subscribed
        if subscribed.is_empty:
            self.leave(now_s)
        elif self.phase in (ClassicPhase.IDLE, ClassicPhase.FATAL):
            self._polled_s = now_s
            self._begin_join(now_s)
        elif self.phase is ClassicPhase.LEAVING:
            self._after_leave = ClassicPhase.JOINING
        elif is_new and self.phase is not ClassicPhase.STALE:
            self._begin_join(now_s)

    def matched(self, subscribed: GroupTopics, now_s: float) -> None:
        """Take the topics that a pattern matches now; a member that is out, or leaves, stays so."""
        if not self.is_out and self.phase is not ClassicPhase.LEAVING:
            self.subscribe(subscribed, now_s)

    def release(self, parts: Iterable[TopicPartition], now_s: float) -> None:
        """Give up parts that were asked back; with the last of them the member joins again."""
        self.held.release(parts)
        self._maybe_move(now_s)

    def note_poll(self, now_s: float) -> None:
        """Note that the application lives; a member that had left for that joins again."""
        self._polled_s = now_s
        if self.phase is ClassicPhase.STALE:
            self._begin_join(now_s)
        elif self.phase is ClassicPhase.LEAVING and self._after_leave is ClassicPhase.STALE:
            self._after_leave = ClassicPhase.JOINING

    def rejoin(self, now_s: float) -> None:
        """Join again with all that is held: another request was refused for the member's sake."""
        if self.phase in (ClassicPhase.STABLE, ClassicPhase.SYNCING, ClassicPhase.PLANNING):
            self._begin_join(now_s)

    def give_way(self, now_s: float) -> None:
        """Lose all, leave, and join anew: another member may begin what this one did not end."""
        if self.phase in (ClassicPhase.STABLE, ClassicPhase.SYNCING, ClassicPhase.PLANNING):
            self._lose_all()
            self._begin_leave(ClassicPhase.JOINING, now_s)

    def leave(self, now_s: float) -> None:
        """Give all up without an effect, and leave; a static member stays for its session."""
        self.held.give_up_all()
        self._begin_leave(ClassicPhase.IDLE, now_s)

    # -- time and answers -------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Do what is due: lose what was not released in time, a session, or the whole group."""
        if self.held.expire(now_s):
            self._maybe_move(now_s)
        if self.is_out or self.phase is ClassicPhase.LEAVING:
            return
        if now_s >= self._polled_s + self._settings.rebalance_timeout_s:
            self._lose_all()
            self._begin_leave(ClassicPhase.STALE, now_s)
        elif now_s >= self._lost_s:
            self._lose_all()
            self._begin_join(now_s)

    def request(self, now_s: float) -> ClassicCall | None:
        """Return the request to send now; None: one is on its way, or none is due."""
        if self._sent is not None or self.is_out or self.phase is ClassicPhase.PLANNING:
            return None
        if now_s < max(self._due_s, self._pauses.until_s):
            return None
        call = self._build()
        self._sent = _Sent(call, self._life, now_s)
        return call

    def answered(self, answer: ClassicAnswer, now_s: float) -> None:
        """Take the answer to the request that is on its way."""
        self.tick(now_s)
        sent, self._sent = self._sent, None
        if sent is None:
            return
        if isinstance(sent.call, ClassicJoin) and answer.code in (0, MEMBER_ID_REQUIRED):
            self._member_id = answer.member_id  # also of a join that is stale: for the leave
        if sent.life != self._life:
            return
        if isinstance(sent.call, ClassicLeave):
            self._end_leave(now_s)
        elif answer.code != 0:
            self._refused(sent, answer, now_s)
        elif isinstance(sent.call, ClassicJoin):
            self._accept_join(answer, now_s)
        elif isinstance(sent.call, ClassicSync):
            self._answered_s = self._settled_s = sent.at_s
            self._accept_sync(answer, now_s, sent.at_s)
        else:
            self._pauses.end()
            self._answered_s = self._settled_s = sent.at_s
            self._due_s = sent.at_s + self._settings.heartbeat_interval_s

    def failed(self, now_s: float) -> None:
        """Note that the request has no answer: the connection broke, or time is up."""
        sent, self._sent = self._sent, None
        self._effects.add(CoordinatorMoved())
        if sent is None or sent.life != self._life:
            return
        self._pauses.begin(now_s)
        if isinstance(sent.call, ClassicLeave):
            self._end_leave(now_s)  # one attempt: the session's end does the rest
        elif isinstance(sent.call, ClassicSync):
            self._begin_join(now_s)

    def counted(self, counts: Mapping[str, int], now_s: float) -> None:
        """Plan the generation over these partition counts."""
        if self.phase is ClassicPhase.PLANNING:
            self._assignments = plan_generation(self._joined, counts)
            self.phase, self._due_s = ClassicPhase.SYNCING, now_s

    # -- inside -----------------------------------------------------------------------------

    def _build(self) -> ClassicCall:
        settings = self._settings
        group_id, instance_id = settings.group_id, settings.instance_id
        if self.phase is ClassicPhase.LEAVING:
            return ClassicLeave(group_id=group_id, member_id=self._member_id)
        if self.phase is ClassicPhase.JOINING:
            self._claimed, self._moving = frozenset(self.held.owned), frozenset()
            return ClassicJoin(
                group_id=group_id,
                member_id=self._member_id,
                instance_id=instance_id,
                session_timeout_s=settings.session_timeout_s,
                rebalance_timeout_s=settings.rebalance_timeout_s,
                metadata=subscription_bytes(
                    settings, self._subscribed.topics, self._claimed, self._owned_generation_id
                ),
            )
        if self.phase is ClassicPhase.SYNCING:
            return ClassicSync(
                group_id=group_id,
                member_id=self._member_id,
                instance_id=instance_id,
                generation_id=self._generation_id,
                assignments=self._assignments,
            )
        return ClassicBeat(
            group_id=group_id,
            member_id=self._member_id,
            instance_id=instance_id,
            generation_id=self._generation_id,
        )

    def _accept_join(self, answer: ClassicAnswer, now_s: float) -> None:
        self._pauses.end()
        self._generation_id = answer.generation_id
        self._answered_s = self._settled_s = now_s
        leads = answer.leader == answer.member_id and not answer.skips_plan
        self._joined = answer.members if leads else ()
        self._assignments = ()
        self.phase = ClassicPhase.PLANNING if leads else ClassicPhase.SYNCING
        self._due_s = now_s

    def _accept_sync(self, answer: ClassicAnswer, now_s: float, sent_s: float) -> None:
        """Take an assignment. Raises: FrameInvalid, its bytes are none."""
        assignment = read_assignment(answer.assignment)
        self._pauses.end()
        self.phase, self.has_joined = ClassicPhase.STABLE, True
        self._owned_generation_id = self._generation_id
        self._due_s = sent_s + self._settings.heartbeat_interval_s
        target = [
            HeldPart(TopicPartition(topic, index), None, None)  # OffsetFetch says what lanes are
            for topic, index in assignment.lanes
        ]
        deadline_s = now_s + self._settings.rebalance_timeout_s
        self.held.set_target(target, deadline_s=deadline_s)
        self._moving = self._claimed - self.held.target.keys()
        self._maybe_move(now_s)

    def _maybe_move(self, now_s: float) -> None:
        """Join again when all that moves to others has been released."""
        if self.phase is not ClassicPhase.STABLE or not self._moving:
            return
        if self._moving.isdisjoint(self.held.owned):
            self._begin_join(now_s)

    def _refused(self, sent: _Sent, answer: ClassicAnswer, now_s: float) -> None:
        code, call = answer.code, sent.call
        if code == REBALANCE_IN_PROGRESS and isinstance(call, ClassicBeat):
            self._answered_s = sent.at_s
        if code == MEMBER_ID_REQUIRED:
            self._due_s = now_s
        elif code == REBALANCE_IN_PROGRESS:
            if isinstance(call, ClassicJoin):
                self._pauses.begin(now_s)
            self._begin_join(now_s)
        elif code in FENCED:
            self._member_id = "" if code == UNKNOWN_MEMBER_ID else self._member_id
            self._lose_all()
            if not isinstance(call, ClassicBeat):
                self._pauses.begin(now_s)
            self._begin_join(now_s)
        elif code in LOADING | MOVED | RETRIABLE:
            if code not in LOADING:
                self._effects.add(CoordinatorMoved())
            self._pauses.begin(now_s)
            if isinstance(call, ClassicSync):
                self._begin_join(now_s)
        else:
            self._lose_all()
            self._new_life(ClassicPhase.FATAL)
            error = GroupRefused(self._settings.group_id, code, answer.name, answer.message)
            self._effects.add(GroupFailed(error))

    def _lose_all(self) -> None:
        self.held.lose_all()
        self._owned_generation_id = NO_GENERATION
        self._answered_s = self._settled_s = math.inf

    def _begin_join(self, now_s: float) -> None:
        """Join with what is held; the answer to a request that is out does not count any more."""
        self._new_life(ClassicPhase.JOINING)
        self._due_s = now_s

    def _begin_leave(self, then: ClassicPhase, now_s: float) -> None:
        self._owned_generation_id = NO_GENERATION
        self._answered_s = self._settled_s = math.inf
        if self.phase is ClassicPhase.LEAVING:
            self._after_leave = then
            return
        is_unknown = not self._member_id and self._sent is None
        if is_unknown or self._settings.instance_id is not None or self.is_out:
            self._new_life(then)
            return
        self._after_leave = then
        self._new_life(ClassicPhase.LEAVING)
        self._due_s = now_s

    def _end_leave(self, now_s: float) -> None:
        self._member_id = ""
        self._new_life(self._after_leave)
        self._due_s = now_s

    def _new_life(self, phase: ClassicPhase) -> None:
        self.phase = phase
        self._life += 1
        self._generation_id = NO_GENERATION
        self._joined, self._assignments = (), ()
