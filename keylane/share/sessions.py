"""Share sessions of members at one node: epochs, partitions, and the end of a session.

Source: KIP-932, "Share sessions"; `SharePartitionManager.newContext`, `acknowledgeSessionUpdate`
and `ShareRequestMetadata` of Apache Kafka 4.3.

A session is one member's at one broker. It ends with its final epoch, with a new session of the
same member there, or with the connection that has opened it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.share.pace import Pace
from keylane.wire.share import FINAL_EPOCH, INITIAL_EPOCH

EPOCH_MAX: Final = 0x7FFF_FFFF
MEMBER_ID_LENGTH_MAX: Final = 36
"""Longer ids are refused by brokers (`KafkaApis.isMemberIdValid`)."""

Place = tuple[bytes, int]
"""Topic id and partition."""


class SessionKey(NamedTuple):
    """Name of a session."""

    broker_id: int
    group: str
    member_id: str


@dataclass(slots=True, eq=False)
class ShareSession:
    """One member's session at one broker. Two sessions of one member are two members."""

    key: SessionKey
    connection: str
    """Id of the connection that has opened it."""
    epoch: int = INITIAL_EPOCH
    """Epoch of the member's last request."""
    places: dict[Place, None] = field(default_factory=dict)
    """Partitions in the order in which they came."""
    forgotten: set[Place] = field(default_factory=set)
    """Partitions that were removed while the member held records of them."""
    topics: dict[bytes, Any] = field(default_factory=dict)
    """By id: topics that keylane orders, as the caller knows them."""
    upstream_epoch: int = INITIAL_EPOCH
    """Epoch of the next request to the broker, for partitions that keylane does not order."""
    pace: Pace = field(default_factory=Pace)

    def add(self, places: Iterable[Place]) -> None:
        """Add partitions; those that are there stay at their places."""
        self.places.update(dict.fromkeys(places))

    def drop(self, places: Iterable[Place]) -> list[Place]:
        """Remove partitions; return those that were there."""
        return [place for place in places if self.places.pop(place, self) is None]

    def turn(self) -> list[Place]:
        """Return the partitions, another one first each time, so that none is always last."""
        found = list(self.places)
        if len(found) > 1:
            first = found[0]
            del self.places[first]
            self.places[first] = None
        return found


def next_epoch(epoch: int) -> int:
    """Return the epoch that follows: 0 and -1 have a meaning, so that 1 follows the last."""
    return 1 if epoch >= EPOCH_MAX else epoch + 1


class ShareSessions:
    """Sessions by name, and by the connection that has opened them."""

    def __init__(self, sessions_max: int) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._of_connection: dict[str, set[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[ShareSession]:
        return iter(self._sessions.values())

    def open(
        self, key: SessionKey, connection: str, *, has_acks: bool
    ) -> tuple[ShareSession | None, ShareSession | None, int]:
        """Open a session with epoch 0: return (new session, the one that it replaces, error code).

        has_acks: the request acknowledges records, of which no new session has any.
        """
        if has_acks:
            return None, None, ErrorCode.invalid_request
        replaced = self.close(key)
        if len(self._sessions) >= self._sessions_max:
            return None, replaced, ErrorCode.share_session_limit_reached
        session = self._sessions[key] = ShareSession(key, connection)
        self._of_connection.setdefault(connection, set()).add(key)
        return session, replaced, 0

    def use(self, key: SessionKey, epoch: int) -> tuple[ShareSession | None, int]:
        """Return the session of a later request, or an error code. The final epoch always fits."""
        session = self._sessions.get(key)
        if epoch == INITIAL_EPOCH:
            return None, ErrorCode.invalid_share_session_epoch
        if session is None:
            return None, ErrorCode.share_session_not_found
        if epoch == FINAL_EPOCH:
            return session, 0
        if epoch != next_epoch(session.epoch):
            return None, ErrorCode.invalid_share_session_epoch
        session.epoch = epoch
        return session, 0

    def close(self, key: SessionKey) -> ShareSession | None:
        """Remove a session; None: there is none."""
        session = self._sessions.pop(key, None)
        if session is not None:
            of_connection = self._of_connection[session.connection]
            of_connection.discard(key)
            if not of_connection:
                del self._of_connection[session.connection]
        return session

    def close_connection(self, connection: str) -> list[ShareSession]:
        """Remove and return the sessions that a connection has opened."""
        keys = list(self._of_connection.get(connection, ()))
        closed = [self.close(key) for key in keys]
        return [session for session in closed if session is not None]

    def of_group(self, group: str) -> list[ShareSession]:
        """Return a group's sessions."""
        return [session for key, session in self._sessions.items() if key.group == group]


def is_valid_member(member_id: str) -> bool:
    """Return whether brokers take a member id."""
    return 0 < len(member_id) <= MEMBER_ID_LENGTH_MAX
