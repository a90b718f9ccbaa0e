"""Lanes of one KIP-848 group: which member may hold a lane, and the next lanes of each. No I/O.

The broker keeps membership and epochs, and keylane keeps lanes. A lane that a member was given, or
says it owns, is in its hands. The target is a plan of all lanes, and `give` leads each member
towards it in steps:

    held(m)  = owned(m) | given(m)
    give(m)  = (target(m) & held(m))                       what it keeps
             | (target(m) - held of all others)            lanes that are free
             | (given(m) - owned(m))                        what it was given and has not confirmed

Source: KIP-848 (reconciliation), docs/decisions/043.

Invariants, for members whose words and ends come from the broker:
1. A lane is in the hands of one member at most.
2. A lane that was given stays given until its member has confirmed it, or has ended.
3. Every lane of a subscribed topic is in one target, once `is_stale` is False, unless members
   bypass keylane, which have whole partitions from the broker.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

from keylane.assignor.model import Lane, Member, Plan
from keylane.offsets.records.held import HeldLanes
from keylane.proxy.groups.consumer_members import (
    NO_LANES,
    NO_PARTS,
    GroupMember,
    GroupTopic,
    Lanes,
    Listed,
    Move,
    Part,
    Parts,
    Subscribed,
    Word,
)
from keylane.proxy.groups.group_plans import identity_of

MOVES_KEPT: Final = 100
"""Moves of one group that are shown."""
PASSED_MAX: Final = 10_000
"""Joins that are remembered until the next listing. A join that is forgotten counts as one that
bypasses keylane until then: its lanes wait, and none has two owners."""
GRACE_S: Final = 2.0
"""Beyond a heartbeat interval, after which a member that the broker has ended has learnt it."""
LOAD: Final = "load"
REASONS: Final = ("restart", "bypass", "topics", "subscription", "leave", "join")
"""Changes after which a plan is made, the first before the second; else it is the load."""


class ConsumerGroup:
    """Members and lanes of one group; see the module."""

    def __init__(self, now_s: float) -> None:
        self.began_s = now_s
        self.members: dict[str, GroupMember] = {}
        self.topics: dict[str, GroupTopic] = {}
        self.target: dict[str, Lanes] = {}
        self.moves: deque[Move] = deque(maxlen=MOVES_KEPT)
        self.is_rough = True  # not dealt out by load: the next plan for it is fine
        self.epoch = -1
        """The highest epoch that any member was answered."""
        self.turn = 0
        """Counts heartbeats that the broker has taken."""
        self._begun_turn = 0
        """Turn of the first join, if the group was made anew."""
        self.reasons: set[str] = set()
        """Changes since the last plan."""
        self.foreign: dict[str, Parts] = {}
        """Members that bypass keylane, with the partitions that they have or are to get."""
        self.still_until_s = now_s
        """Until then no lane changes hands."""
        self.planned_s, self.topics_epoch = now_s, -1
        """Time of the last plan, and epoch at which topics were looked up."""
        self.is_met = self.is_asking = self.is_planning = False
        """The broker's members are known; it is being asked for them; a plan is being made."""
        self.listed_epoch = -1
        """Epoch of the group when the broker was asked for its members last."""
        self.list_due_s = now_s
        """Time from which on it may be asked again."""
        self.is_doubtful = False
        """The broker wants a partition back, and its receiver may be a member that is not known."""
        self.foreign_logged = 0
        """Number of foreign members with partitions that was logged last."""
        self.unwritten: dict[str, GroupMember | None] = {}
        """Members whose lanes in hand are not those of the journal; None: it has ended."""
        self._holders: dict[Lane, set[str]] = {}
        self._unsettled: set[str] = set()
        self._ids: dict[str, str] = {}
        """Identities by member id."""
        self._joining: Counter[str] = Counter()
        self._passed: set[str] = set()
        """Member ids whose joins this node has passed on."""

    # What members and the broker say.

    def load(self, written: Iterable[HeldLanes]) -> None:
        """Begin with what the journal has, in its order.

        A lane is given when its last holder has released it, so the later record counts.
        """
        for given in reversed(list(written)):
            identity = identity_of(given.member_id, given.instance_id)
            member = GroupMember(identity, given.member_id, given.instance_id)
            lanes = frozenset(lane for lane in given.lanes if lane not in self._holders)
            member.subscribed = Subscribed(frozenset(name for name, _ in lanes))
            member.epoch = given.epoch
            self.members[identity] = member
            self._ids[given.member_id] = identity
            self._set(member, owned=lanes, given=lanes, epoch=given.epoch)
        self.reasons.add("restart")
        self.unwritten.clear()

    def take(self, identity: str, word: Word) -> GroupMember:
        """Take a member's word that the broker has taken, in any order of the answers."""
        if word.is_join and word.epoch < word.group_epoch:
            self._begin_epochs()
        member = self.members.get(identity)
        if member is None:
            member = self.members[identity] = GroupMember(
                identity, word.member_id, word.instance_id
            )
            member.subscribed = word.subscribed or member.subscribed
            self.reasons.add("join")
            self.foreign.pop(identity, None)
            if word.epoch < self.listed_epoch:
                self.listed_epoch = -1  # it may have ended before the broker listed the members
        if word.order < member.order:
            return member
        self.turn += 1
        member.order, member.seen, member.is_away = word.order, self.turn, False
        self._ids.pop(member.member_id, None)
        self._ids[word.member_id] = identity
        member.member_id, member.client_id = word.member_id, word.client_id or member.client_id
        member.epoch = word.epoch if word.is_join else max(member.epoch, word.epoch)
        self.epoch = max(self.epoch, word.epoch)
        self._take_subscription(member, word)
        if word.is_join:
            member.sent = None
            self._set(member, owned=NO_LANES, given=member.given, epoch=word.epoch)
        elif word.owned is not None:
            # A lane in the hands of another member is not believed: its owner is asked to stop.
            held = member.held
            owned = frozenset(x for x in word.owned if x in held or x not in self._holders)
            self._set(member, owned=owned, given=member.given, epoch=word.epoch)
        member.has_spoken = member.has_spoken or word.is_full or word.is_join
        if word.parts is not None and word.parts != member.assigned:
            member.assigned = word.parts
            # A member that bypasses keylane may be the receiver, and not be known yet.
            self.is_doubtful = self.is_doubtful or bool(member.claimed - word.parts)
            if self.foreign:
                self.reasons.add("bypass")
        return member

    def _begin_epochs(self) -> None:
        """A group that was deleted, or has expired, was made anew, with epochs from 1 on."""
        self.epoch = self.listed_epoch = self.topics_epoch = -1
        self._begun_turn = self.turn + 1

    def _take_subscription(self, member: GroupMember, word: Word) -> None:
        if word.subscribed is not None:
            if word.subscribed.names != member.subscribed.names:
                self.reasons.add("subscription")
            member.subscribed = word.subscribed
        member.rack = word.rack or member.rack
        member.rebalance_timeout_s = word.rebalance_timeout_s or member.rebalance_timeout_s
        member.shares, member.takes_parts = word.shares, word.takes_parts
        if word.plain_owned is not None:
            member.plain_owned = word.plain_owned
        if word.plain_parts is not None:
            member.plain_parts = word.plain_parts
            since = member.plain_since
            member.plain_since = {part: since.get(part, word.epoch) for part in word.plain_parts}

    def find(self, member_id: str) -> GroupMember | None:
        """Return the member of an id; None: it does not speak with this node."""
        return self.members.get(self._ids.get(member_id, ""))

    def pause(self, identity: str) -> None:
        """A static member went and will be back: its lanes wait for it, in no hands but its own."""
        member = self.members.get(identity)
        if member is not None:
            member.is_away = True
            self._set(member, owned=NO_LANES, given=member.given, epoch=member.epoch)

    def end(self, identity: str) -> GroupMember | None:
        """A member has ended, by the broker's word: its lanes are free."""
        member = self.members.pop(identity, None)
        if member is not None:
            for lane in member.held:
                self._release(lane, identity)
            if member.is_written:
                self.unwritten[identity] = None
            self._ids.pop(member.member_id, None)
            self.target.pop(identity, None)
            self._unsettled.discard(identity)
            self.reasons.add("leave")
        return member

    def begin_join(self, member_id: str) -> None:
        """Note that a member's heartbeat is passed on, which may make it a member."""
        self._joining[member_id] += 1
        if len(self._passed) >= PASSED_MAX:
            self._passed &= self._joining.keys()
        self._passed.add(member_id)

    def end_join(self, member_id: str) -> None:
        """Note that it was answered, or that its connection has ended."""
        self._joining[member_id] -= 1
        if not self._joining[member_id]:
            del self._joining[member_id]

    def has_passed(self, listed: Iterable[Listed]) -> bool:
        """Return whether all of these members have joined by way of this node."""
        return all(one.member_id in self._passed for one in listed)

    def is_list_due(self, now_s: float) -> bool:
        """Return whether the broker is to be asked for the members: they may have changed."""
        has_changed = self.epoch > self.listed_epoch or self.is_doubtful
        return has_changed and not self.is_asking and now_s >= self.list_due_s

    def note_listed(self, listed: Iterable[Listed], asked: tuple[int, int]) -> list[str]:
        """Take the broker's description; return members that are gone, and end them.

        asked: `turn` and `epoch` when the broker was asked. A member that it took a heartbeat of
        since may be newer than the description, and is asked for once more.
        """
        turn, epoch = asked
        found = {one.identity: one for one in listed}
        missing = [name for name in self.members if name not in found]
        gone = [name for name in missing if self.members[name].seen <= turn]
        is_whole = gone == missing and turn >= self._begun_turn
        self.listed_epoch = epoch if is_whole else -1
        self.is_doubtful = False
        for identity in gone:
            self.end(identity)
        self._passed &= {one.member_id for one in found.values()} | self._joining.keys()
        foreign = {
            identity: one.parts
            for identity, one in found.items()
            if one.reads_lanes
            and identity not in self.members
            and one.member_id not in self._passed
        }
        if foreign != self.foreign:
            self.foreign = foreign
            self.reasons.add("bypass")
        return gone

    def set_topics(self, topics: Mapping[str, GroupTopic]) -> None:
        """Take the lane topics that the members name. A topic that was made anew has no holder."""
        before = {name: known.view_id for name, known in self.topics.items()}
        fresh = {name for name, topic in topics.items() if topic.view_id != before.get(name)}
        for name in fresh & before.keys():
            self._forget_topic(name)
        for member in self.members.values():
            if any(name in fresh for name in member.subscribed.names):
                member.sent = None  # its lanes have another id, or were left out
        if dict(topics) != self.topics:
            self.topics = dict(topics)
            self.reasons.add("topics")

    # The plan.

    @property
    def is_stale(self) -> bool:
        """Return whether the target is of other members or topics."""
        return bool(self.reasons)

    def begin_grace(self, interval_s: float) -> None:
        """Set the end of the time in which nothing changes hands, by the heartbeat interval.

        During an outage longer than the session time-out the broker ends all members, and each
        reads on until its next heartbeat.
        """
        if self.still_until_s == math.inf:
            self.still_until_s = self.began_s + interval_s + GRACE_S

    def is_still(self, now_s: float) -> bool:
        """Return whether lanes must stay where they are."""
        return now_s < self.still_until_s

    def is_plan_due(self, now_s: float, load_s: float) -> bool:
        """Return whether a plan is to be made; load_s: time between two plans for load alone."""
        if self.is_still(now_s) or not self.members:
            return False
        is_quiet = self.is_settled and not self.foreign
        return self.is_stale or (is_quiet and now_s - self.planned_s >= load_s)

    def skip_plan(self, now_s: float) -> None:
        """Leave the target as it is: another plan is not worth its moves."""
        self.planned_s = now_s

    def begin_plan(self) -> tuple[list[Member], str]:
        """Return `plan_members`, and the reason of the plan."""
        reason = next((each for each in REASONS if each in self.reasons), LOAD)
        self.reasons.clear()
        return self.plan_members(), reason

    def plan_members(self) -> list[Member]:
        """Return members for the assignor. A lane on its way belongs to its receiver."""
        planned = {lane for lanes in self.target.values() for lane in lanes}
        return [
            Member(
                member_id=identity,
                topics=member.subscribed.names & self.topics.keys(),
                owned=tuple(sorted(self._kept(identity, planned))),
                instance_id=member.instance_id,
                rack=member.rack,
                shares=member.shares,
            )
            for identity, member in self.members.items()
        ]

    def set_target(self, plan: Plan, reason: str, now_s: float, now_ms: int) -> list[Move]:
        """Put a plan in place, unless members bypass keylane; return moves."""
        plan = self._beside_foreign() if self.foreign else plan
        owners = {lane: name for name, lanes in self.target.items() for lane in lanes}
        for identity, member in self.members.items():
            owners |= {lane: identity for lane in member.held if lane not in owners}
        target: dict[str, Lanes] = {}
        moves = []
        for identity in self.members:
            lanes = frozenset(plan.get(identity, ()))
            target[identity] = lanes
            moves += [
                Move(now_ms, lane, owners[lane], identity, reason)
                for lane in sorted(lanes)
                if owners.get(lane, identity) != identity
            ]
        self.target, self.planned_s = target, now_s
        self.is_rough = reason != LOAD
        self.moves.extend(moves)
        self._unsettled = {name for name, one in self.members.items() if not self._is_settled(one)}
        return moves

    def _beside_foreign(self) -> Plan:
        """Return the plan while members bypass keylane: what the broker has given, whole.

        Each partition is then at one member, here or there, as the broker's own protocol has it.
        """
        return {
            identity: tuple(
                lane
                for name in member.subscribed.names & self.topics.keys()
                for lane in sorted(self.topics[name].lanes_of(member.assigned))
            )
            for identity, member in self.members.items()
        }

    # Answers.

    @property
    def is_settled(self) -> bool:
        """Return whether every member has confirmed its target."""
        return not self._unsettled

    def give(self, identity: str, now_s: float) -> Lanes:
        """Return the lanes that a member is given now; they count as given from here on."""
        member = self.members[identity]
        if identity in self._unsettled and not self.is_still(now_s) and identity in self.target:
            mine, target = {identity}, self.target[identity]
            lanes = frozenset(lane for lane in target if self._holders.get(lane, mine) == mine)
            lanes |= member.given - member.owned
            if lanes != member.given:
                self._set(member, owned=member.owned, given=lanes, epoch=member.epoch)
            self._note_late(member, now_s)
        return member.given

    def late(self, now_s: float) -> list[GroupMember]:
        """Return members that have not confirmed their lanes within their rebalance time-out."""
        found = (self.members[name] for name in self._unsettled)
        return [
            one
            for one in found
            if one.late_since_s is not None and now_s - one.late_since_s > one.rebalance_timeout_s
        ]

    def claim(self, identity: str) -> Parts:
        """Return the partitions that keylane says to the broker this member owns.

        A partition whose lanes are still read here is not released to a member that bypasses
        keylane: the broker waits, as for any member that revokes.
        """
        member = self.members.get(identity)
        if member is None:
            return NO_PARTS
        is_mixed = bool(self.foreign) or self.is_doubtful
        given_up = member.claimed - member.assigned if is_mixed else NO_PARTS
        member.claimed = member.assigned | {part for part in given_up if self._is_read(part)}
        return member.claimed

    def holder_of(self, lane: Lane) -> str | None:
        """Return the identity of the member that has a lane; None: it is free, or in dispute."""
        holders = self._holders.get(lane, set())
        return next(iter(holders)) if len(holders) == 1 else None

    def newest_epoch(self, identity: str, epoch: int, lanes: Iterable[Lane] | None) -> int:
        """Return the epoch to send in the place of an older one of the member.

        As KIP-1251 for partitions: an older epoch stands for the newest one where the member has
        all of these lanes since then without a break. lanes: None for a read.
        """
        member = self.members.get(identity)
        if member is None or not 0 < epoch < member.epoch:
            return epoch
        for lane in lanes or ():
            if lane not in member.held or member.since.get(lane, member.epoch) > epoch:
                return epoch
        return member.epoch

    def changes(self) -> dict[str, HeldLanes | None]:
        """Return what the journal is not known to have: lanes by identity, None for none."""
        return {name: None if one is None else one.record for name, one in self.unwritten.items()}

    def note_written(self, changes: Mapping[str, HeldLanes | None]) -> None:
        """Note that the journal has them. What has changed since stays to be written.

        Until then each answer waits for a write that has them: that of another member may fail.
        """
        now = self.changes()
        for identity, held in changes.items():
            if identity in now and now[identity] == held:
                del self.unwritten[identity]

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        holders: dict[Lane, set[str]] = {}
        for identity, member in self.members.items():
            for lane in member.held:
                holders.setdefault(lane, set()).add(identity)
            assert member.since.keys() == set(member.held)
        assert holders == self._holders

    # Inside.

    def _kept(self, identity: str, planned: set[Lane]) -> Lanes:
        mine = self.target.get(identity, NO_LANES)
        held = self.members[identity].held
        return mine | (held if not planned else frozenset(x for x in held if x not in planned))

    def _is_read(self, part: Part) -> bool:
        """Return whether any member may read a lane of the partition."""
        return any(
            name in self.topics and self.topics[name].part_of(index) == part
            for name, index in self._holders
        )

    def _set(self, member: GroupMember, *, owned: Lanes, given: Lanes, epoch: int) -> None:
        before, has_moved = member.held, owned != member.owned
        if owned == given:
            owned = given
        member.owned, member.given = owned, given
        after = member.held
        if after != before:
            member.since = {lane: member.since.get(lane, epoch) for lane in after}
            self.unwritten[member.identity], member.is_written = member, True
        for lane in before - after:
            self._release(lane, member.identity)
        for lane in after - before:
            self._holders.setdefault(lane, set()).add(member.identity)
        if has_moved or owned == given:
            member.late_since_s = None
        self._note_settled(member)

    def _release(self, lane: Lane, identity: str) -> None:
        holders = self._holders[lane]
        holders.discard(identity)
        if not holders:
            del self._holders[lane]

    def _is_settled(self, member: GroupMember) -> bool:
        given = member.given
        is_confirmed = member.is_away or member.owned == given
        return is_confirmed and self.target.get(member.identity) == given

    def _note_settled(self, member: GroupMember) -> None:
        if self._is_settled(member):
            self._unsettled.discard(member.identity)
        elif member.identity in self.members:
            self._unsettled.add(member.identity)

    def _note_late(self, member: GroupMember, now_s: float) -> None:
        if member.late_since_s is None and member.owned != member.given:
            member.late_since_s = now_s

    def _forget_topic(self, name: str) -> None:
        for identity, member in self.members.items():
            owned = frozenset(lane for lane in member.owned if lane[0] != name)
            given = frozenset(lane for lane in member.given if lane[0] != name)
            self._set(member, owned=owned, given=given, epoch=member.epoch)
            mine = self.target.get(identity, NO_LANES)
            self.target[identity] = frozenset(lane for lane in mine if lane[0] != name)
