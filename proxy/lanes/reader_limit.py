"""Bound of the readers that clients open by lane names of their own choice.

Source: docs/decisions/039.

Under lane names a topic can be read in any number of lanes, and each number is a reader per
partition: connections to brokers, and all records read, decompressed and hashed once more. So
each user (a principal; without a login an address) has a bound of lane names in use, and three
quarters of all lanes that may be read. Names that the operator has given lanes do not count:
their readers are bounded by the number of topics.
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from kio.schema.errors import ErrorCode

log = logging.getLogger("keylane.reader")

Key = TypeVar("Key", bound=Hashable)

READER_LANES_MIN: Final = 16
"""The least cost of a reader, for its connections."""
IDLE_S: Final = 10.0
"""A reader without a request in this time gives way: 20 times the wait of a client's poll."""
NAME_IDLE_S: Final = 60.0
"""A name without a request in this time counts no more, as its readers are closed."""
LOG_INTERVAL_S: Final = 60.0
"""Interval of log lines about refusals."""
USER_SHARE: Final = 3, 4
"""One user has three quarters of the lanes at most."""
TOO_MANY_LANES: Final = ErrorCode.topic_authorization_failed
"""Error that all clients report to their application at once, of the codes that they know in a
Fetch answer: Java throws a `TopicAuthorizationException`, librdkafka gives a partition error.
POLICY_VIOLATION is an `IllegalStateException` to Java's `FetchCollector`."""


@dataclass(slots=True)
class _Held:
    """A reader that counts."""

    user: str
    name: str
    cost: int
    used_s: float
    """Time of the last read by its user."""


@dataclass(slots=True)
class _User(Generic[Key]):
    names: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Time of each name's last read; the longest unread first."""
    readers: OrderedDict[Key, _Held] = field(default_factory=OrderedDict)
    """Readers that count for the user; the longest unused first."""
    lanes: int = 0


class ReaderRoom(Generic[Key]):
    """Counts of lane names by user, and of lanes by user and in all; event loop only.

    Invariants: a user's `lanes` is the sum of its readers' costs, and at most a part of
    `lanes_max`; `lanes` is the sum over the users, and at most `lanes_max`.
    """

    def __init__(
        self,
        *,
        names_max: int = sys.maxsize,
        lanes_max: int = sys.maxsize,
        is_busy: Callable[[Key], bool] = lambda _key: False,
        close: Callable[[Key], None] = lambda _key: None,
    ) -> None:
        """names_max: lane names of one user. lanes_max: lanes of the readers, in all.

        is_busy: returns whether a reader is in use, also under the topic's own name; it stays then.
        close: is called with a reader that has to go; `leave` need not follow.
        """
        self._names_max, self._lanes_max = names_max, lanes_max
        self._of_user_max = lanes_max * USER_SHARE[0] // USER_SHARE[1]
        self._is_busy, self._close = is_busy, close
        self._users: dict[str, _User[Key]] = {}
        self._held: dict[Key, _Held] = {}
        self._logged_s, self._unlogged = float("-inf"), 0
        self.lanes = 0
        self.refused = 0
        """Reads that were refused, since the start."""

    def __len__(self) -> int:
        return len(self._held)

    def enter(self, user: str, name: str, key: Key, lane_count: int, now_s: float) -> int:
        """Note a read of `user` under a lane name; return 0, or the code of a refusal."""
        of_user = self._users.get(user)
        if of_user is None:
            of_user = self._users[user] = _User()
        refusal = self._enter_name(of_user, name, now_s)
        if not refusal:
            refusal = self._enter_reader(user, of_user, name, key, lane_count, now_s)
        if refusal:
            self._note_refused(user, name, refusal, now_s)
        self._drop_empty(user)
        return refusal

    def leave(self, key: Key) -> None:
        """Note that a reader is closed."""
        held = self._held.pop(key, None)
        if held is None:
            return
        of_user = self._users[held.user]
        del of_user.readers[key]
        of_user.lanes -= held.cost
        self.lanes -= held.cost
        self._drop_empty(held.user)

    def sweep(self, now_s: float) -> None:
        """Forget names that were not read for a while."""
        for user, of_user in list(self._users.items()):
            while of_user.names and now_s - next(iter(of_user.names.values())) > NAME_IDLE_S:
                of_user.names.popitem(last=False)
            self._drop_empty(user)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        assert self.lanes == sum(held.cost for held in self._held.values()) <= self._lanes_max
        for user, of_user in self._users.items():
            assert of_user.names or of_user.readers
            assert len(of_user.names) <= self._names_max
            assert of_user.lanes == sum(held.cost for held in of_user.readers.values())
            assert of_user.lanes <= self._of_user_max
            assert all(held.user == user for held in of_user.readers.values())
            assert of_user.readers.items() <= self._held.items()
        assert len(self._held) == sum(len(each.readers) for each in self._users.values())

    # Inside.
    def _enter_name(self, of_user: _User[Key], name: str, now_s: float) -> int:
        names = of_user.names
        if name not in names and len(names) >= self._names_max:
            oldest = next(iter(names))
            readers = [key for key, held in of_user.readers.items() if held.name == oldest]
            if now_s - names[oldest] < IDLE_S or any(map(self._is_busy, readers)):
                return TOO_MANY_LANES
            names[name] = now_s
            del names[oldest]
            for key in readers:
                self._give_up(key)
        names[name] = now_s
        names.move_to_end(name)
        return 0

    def _enter_reader(
        self, user: str, of_user: _User[Key], name: str, key: Key, lane_count: int, now_s: float
    ) -> int:
        held = self._held.get(key)
        if held is not None and held.user == user:
            held.name, held.used_s = name, now_s
            of_user.readers.move_to_end(key)
            return 0
        if held is not None and now_s - held.used_s < IDLE_S:
            return 0  # another user reads it as well, and it counts there
        cost = max(lane_count, READER_LANES_MIN)
        while of_user.lanes + cost > self._of_user_max:
            if not self._close_idle(of_user, now_s, but=key):
                return TOO_MANY_LANES
        free = self._lanes_max - self.lanes + (0 if held is None else held.cost)
        while free < cost:
            users = sorted(self._users.values(), key=_longest_unused)
            before = self.lanes
            if not any(self._close_idle(each, now_s, but=key) for each in users):
                return ErrorCode.not_leader_or_follower
            free += before - self.lanes
        self.leave(key)  # its user has given it up
        # Others' users may have gone with their last reader; this one has a name.
        held = self._held[key] = of_user.readers[key] = _Held(user, name, cost, now_s)
        of_user.lanes += held.cost
        self.lanes += held.cost
        return 0

    def _close_idle(self, of_user: _User[Key], now_s: float, *, but: Key) -> bool:
        """Close the user's longest unused reader that is not busy, if it is idle."""
        for key, held in of_user.readers.items():
            if now_s - held.used_s < IDLE_S:
                return False
            if key != but and not self._is_busy(key):
                self._give_up(key)
                return True
        return False

    def _give_up(self, key: Key) -> None:
        self.leave(key)
        self._close(key)

    def _drop_empty(self, user: str) -> None:
        of_user = self._users.get(user)
        if of_user is not None and not of_user.names and not of_user.readers:
            del self._users[user]

    def _note_refused(self, user: str, name: str, code: int, now_s: float) -> None:
        self.refused += 1
        self._unlogged += 1
        if now_s - self._logged_s < LOG_INTERVAL_S:
            return
        log.warning(
            "read under a lane name refused client=%s topic=%s error_code=%d lanes=%d count=%d"
            " remedy=raise lane_names_per_principal_max (%d) or lane_name_lanes_max (%d)",
            user, name, code, self.lanes, self._unlogged, self._names_max, self._lanes_max,
        )  # fmt: skip
        self._logged_s, self._unlogged = now_s, 0


def _longest_unused(of_user: _User[Key]) -> float:
    return next((held.used_s for held in of_user.readers.values()), float("inf"))
