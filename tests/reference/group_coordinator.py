"""Naive twin of Kafka's coordinator of classic groups: one group, in memory, on a made-up clock.

In:    requests as kio entities.  Out: answers as plain values, at once or later.
Source: Apache Kafka 4, `GroupMetadataManager` (classicGroupJoin, classicGroupSync, heartbeats,
leaves, their expiry, classicGroup.describe); KIP-62, KIP-394. Left out: static members, several
protocols, the initial delay of an empty group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Reply = Callable[[dict[str, Any]], None]
At = Callable[[float, Callable[[], None]], None]
"""Have something done so many seconds from now."""

LOAD_IN_PROGRESS, NOT_COORDINATOR = 14, 16
ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 22, 25, 27, 79
LEAVE_GROUP, DESCRIBE_GROUPS = 13, 15
SHOWN = {
    "EMPTY": "Empty",
    "PREPARING": "PreparingRebalance",
    "COMPLETING": "CompletingRebalance",
    "STABLE": "Stable",
}


@dataclass
class Member:
    """What outlives a fail-over, and what does not."""

    session_s: float
    metadata: bytes
    assignment: bytes = b""
    join_reply: Reply | None = None
    sync_reply: Reply | None = None
    beat: int = 0
    """Counts what restarted the session's timer."""


@dataclass
class Stored:
    """The group's record in `__consumer_offsets`."""

    generation_id: int = 0
    leader: str = ""
    members: dict[str, tuple[float, bytes, bytes]] = field(default_factory=dict)


class GroupTwin:
    """One group at its coordinator; `EMPTY`, `PREPARING`, `COMPLETING` or `STABLE`."""

    def __init__(self, at: At, *, store_s: Callable[[], float] = lambda: 0.0) -> None:
        """`store_s` is how long a record takes to be stored."""
        self._after, self._store_s = at, store_s
        self._ids = itertools.count(1)
        self._life = 0
        """Counts the lives of the coordinator: timers of an earlier one do nothing."""
        self._round = 0
        """Counts what ends a rebalance's timers."""
        self.stored = Stored()
        self.is_loading = False
        self.initial_delay_s = 0.0
        """How long the first generation of an empty group waits for more members."""
        self._held_round = -1
        self._begin(Stored())

    def _begin(self, stored: Stored) -> None:
        self._life += 1
        self.pending: set[str] = set()
        self.generation_id, self.leader = stored.generation_id, stored.leader
        self.members = {
            member_id: Member(session_s, metadata, assignment)
            for member_id, (session_s, metadata, assignment) in stored.members.items()
        }
        self.state = "STABLE" if self.members else "EMPTY"
        for member_id in self.members:
            self._restart_session(member_id)

    def fail_over(self, load_s: float) -> None:
        """Lose all that is not stored; members that wait get no answer."""
        self._life += 1
        self.is_loading = True

        def loaded() -> None:
            self.is_loading = False
            self._begin(deepcopy(self.stored))

        self._at(load_s, loaded)

    def handle(self, api_key: int, request: Any, reply: Reply) -> None:
        """Take a request in; `reply` is called with the answer's values, now or later."""
        if self.is_loading:
            reply({"error_code": LOAD_IN_PROGRESS})
            return
        handlers: dict[int, Callable[[Any, Reply], None]] = {
            11: self._join,
            12: self._heartbeat,
            LEAVE_GROUP: self._leave,
            14: self._sync,
            DESCRIBE_GROUPS: self._describe,
        }
        handlers[api_key](request, reply)

    # JoinGroup.
    def _join(self, request: Any, reply: Reply) -> None:
        member_id = request.member_id
        session_s = request.session_timeout.total_seconds()
        metadata = bytes(request.protocols[0].metadata)
        if not member_id:
            member_id = f"member-{next(self._ids)}"
            self.pending.add(member_id)
            self._at(session_s, lambda: self._pending_expired(member_id))
            reply({"error_code": MEMBER_ID_REQUIRED, "member_id": member_id})
        elif member_id in self.pending:
            self.pending.remove(member_id)
            self.members[member_id] = Member(session_s, metadata, join_reply=reply)
            self._restart_session(member_id)
            self._rebalance_or_complete()
        elif member_id not in self.members:
            reply({"error_code": UNKNOWN_MEMBER_ID})
        else:
            member = self.members[member_id]
            is_same = member.metadata == metadata
            is_current = self.state == "COMPLETING" or (
                self.state == "STABLE" and member_id != self.leader
            )
            self._restart_session(member_id)
            if is_same and is_current:
                reply(self._joined(member_id))
            else:
                member.metadata, member.join_reply = metadata, reply
                self._rebalance_or_complete()

    def _rebalance_or_complete(self) -> None:
        if self.state == "PREPARING":
            self._maybe_complete()
        else:
            self._prepare()

    def _prepare(self) -> None:
        for member in self.members.values():
            if member.sync_reply is not None:
                member.sync_reply({"error_code": REBALANCE_IN_PROGRESS})
                member.sync_reply = None
        was_empty, self.state = self.state == "EMPTY", "PREPARING"
        self._round += 1
        this_round = self._round
        if was_empty and self.initial_delay_s:
            self._held_round = this_round
            self._at(self.initial_delay_s, lambda: self._end_delay(this_round))
        patience_s = max((member.session_s for member in self.members.values()), default=0.0)

        def expired() -> None:
            if self._round == this_round:
                self._complete()

        self._at(patience_s, expired)
        self._maybe_complete()

    def _end_delay(self, this_round: int) -> None:
        if self._held_round == this_round:
            self._held_round = -1
        if self._round == this_round:
            self._maybe_complete()

    def _maybe_complete(self) -> None:
        if self._held_round == self._round:
            return
        has_all = all(member.join_reply is not None for member in self.members.values())
        if self.state == "PREPARING" and has_all and not self.pending:
            self._complete()

    def _complete(self) -> None:
        self._round += 1
        self.members = {key: m for key, m in self.members.items() if m.join_reply is not None}
        self.generation_id += 1
        if not self.members:
            self.state, self.leader = "EMPTY", ""
            self._store()
            return
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.state = "COMPLETING"
        this_round = self._round
        for member_id, member in self.members.items():
            reply, member.join_reply = member.join_reply, None
            assert reply is not None
            self._restart_session(member_id)
            reply(self._joined(member_id))

        def expired() -> None:
            if self._round == this_round and self.state == "COMPLETING":
                silent = [key for key, m in self.members.items() if m.sync_reply is None]
                for member_id in silent:
                    del self.members[member_id]
                self._prepare()

        self._at(max(member.session_s for member in self.members.values()), expired)

    def _joined(self, member_id: str) -> dict[str, Any]:
        members = [
            {"member_id": key, "metadata": member.metadata} for key, member in self.members.items()
        ]
        return {
            "generation_id": self.generation_id,
            "leader": self.leader,
            "member_id": member_id,
            "members": members if member_id == self.leader else [],
        }

    # SyncGroup.
    def _sync(self, request: Any, reply: Reply) -> None:
        member = self.members.get(request.member_id)
        if member is None:
            reply({"error_code": UNKNOWN_MEMBER_ID})
        elif request.generation_id != self.generation_id:
            reply({"error_code": ILLEGAL_GENERATION})
        elif self.state == "PREPARING":
            reply({"error_code": REBALANCE_IN_PROGRESS})
        elif self.state == "STABLE":
            self._restart_session(request.member_id)
            reply({"assignment": member.assignment})
        else:
            member.sync_reply = reply
            self._restart_session(request.member_id)
            if request.member_id == self.leader:
                given = {a.member_id: bytes(a.assignment) for a in request.assignments}
                self._store_assignment(given)

    def _store_assignment(self, given: dict[str, bytes]) -> None:
        this_round = self._round

        def stored() -> None:
            if self._round != this_round or self.state != "COMPLETING":
                return
            for member_id, member in self.members.items():
                member.assignment = given.get(member_id, b"")
            self.state = "STABLE"
            self._store()
            for member_id, member in self.members.items():
                reply, member.sync_reply = member.sync_reply, None
                if reply is not None:
                    self._restart_session(member_id)
                    reply({"assignment": member.assignment})

        self._at(self._store_s(), stored)

    def _store(self) -> None:
        self.stored = Stored(
            self.generation_id,
            self.leader,
            {key: (m.session_s, m.metadata, m.assignment) for key, m in self.members.items()},
        )

    # Heartbeat, LeaveGroup.
    def _heartbeat(self, request: Any, reply: Reply) -> None:
        if request.member_id not in self.members:
            reply({"error_code": UNKNOWN_MEMBER_ID})
        elif request.generation_id != self.generation_id:
            reply({"error_code": ILLEGAL_GENERATION})
        else:
            self._restart_session(request.member_id)
            reply({"error_code": REBALANCE_IN_PROGRESS if self.state == "PREPARING" else 0})

    def _leave(self, request: Any, reply: Reply) -> None:
        codes = []
        for leaving in request.members:
            if leaving.member_id in self.pending:
                self._pending_expired(leaving.member_id)
                codes.append(0)
            elif leaving.member_id in self.members:
                self._remove(leaving.member_id)
                codes.append(0)
            else:
                codes.append(UNKNOWN_MEMBER_ID)
        reply({"members": [{"error_code": code} for code in codes]})

    def _describe(self, _request: Any, reply: Reply) -> None:
        is_stable = self.state == "STABLE"
        members = [
            {"member_id": key, "member_metadata": member.metadata if is_stable else b""}
            for key, member in self.members.items()
        ]
        reply({"group_state": SHOWN[self.state], "members": members})

    # Timers.
    def _at(self, seconds: float, do: Callable[[], None]) -> None:
        life = self._life
        self._after(seconds, lambda: do() if self._life == life else None)

    def _restart_session(self, member_id: str) -> None:
        member = self.members[member_id]
        member.beat += 1
        beat = member.beat

        def expired() -> None:
            if self.members.get(member_id) is not member or member.beat != beat:
                return
            if member.join_reply is not None or member.sync_reply is not None:
                return  # a member that waits for an answer is not silent
            self._remove(member_id)

        self._at(member.session_s, expired)

    def _pending_expired(self, member_id: str) -> None:
        self.pending.discard(member_id)
        self._maybe_complete()

    def _remove(self, member_id: str) -> None:
        del self.members[member_id]
        self._rebalance_or_complete()
