"""A member with its wire: one interface over both protocols, for the shell.

A line turns the machine's requests into kio's entities and the coordinator's answers into values.
Source: KIP-848; Kafka protocol guide. The time-out of JoinGroup is that of Kafka's consumer.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

from keylane.client.group.classic import ClassicMember
from keylane.client.group.classic_calls import (
    JOIN_KEY,
    SYNC_KEY,
    VERSIONS_MAX,
    ClassicAnswer,
    ClassicCall,
    call_entity,
    read_call_answer,
)
from keylane.client.group.consumer_protocol import ConsumerMember
from keylane.client.group.heartbeats import (
    API_KEY,
    VERSION_MAX,
    HeartbeatAnswer,
    HeartbeatRequest,
    heartbeat_entity,
    read_heartbeat_answer,
)
from keylane.client.group.settings import GroupSettings

TRIES_PER_SESSION: Final = 3
"""Requests that may go unanswered, one after the other, before the session is over."""
JOIN_GRACE_S: Final = 5.0
"""Kafka's JOIN_GROUP_TIMEOUT_LAPSE: a JoinGroup is answered by the rebalance time-out."""


class CoordinatorCall(NamedTuple):
    """A request, ready for `ask_coordinator`."""

    api_key: int
    version_max: int
    make: partial[Any]
    timeout_s: float


class ConsumerLine:
    """Line of the consumer protocol."""

    def __init__(self, machine: ConsumerMember, settings: GroupSettings) -> None:
        self.machine, self._settings = machine, settings

    def question(self, now_s: float) -> CoordinatorCall | None:
        """Return the request to send now."""
        request: HeartbeatRequest | None = self.machine.request(now_s)
        if request is None:
            return None
        timeout_s = self._settings.session_timeout_s / TRIES_PER_SESSION
        return CoordinatorCall(API_KEY, VERSION_MAX, partial(heartbeat_entity, request), timeout_s)

    def read(self, entity: Any) -> HeartbeatAnswer:
        """Return an answer's values. Raises: FrameInvalid."""
        return read_heartbeat_answer(entity)

    def answered(self, answer: Any, now_s: float) -> None:
        """Take what `read` returned."""
        self.machine.answered(answer, now_s)

    def refused(self, code: int, name: str, message: str, now_s: float) -> None:
        """Take a refusal that no answer of the coordinator holds."""
        self.machine.answered(HeartbeatAnswer(code=code, name=name, message=message), now_s)


class ClassicLine:
    """Line of the classic protocol."""

    def __init__(self, machine: ClassicMember, settings: GroupSettings) -> None:
        self.machine, self._settings = machine, settings

    def question(self, now_s: float) -> CoordinatorCall | None:
        """Return the request to send now."""
        call: ClassicCall | None = self.machine.request(now_s)
        if call is None:
            return None
        timeout_s = self._settings.session_timeout_s / TRIES_PER_SESSION
        if call.api_key in (JOIN_KEY, SYNC_KEY):
            timeout_s = max(timeout_s, self._settings.rebalance_timeout_s + JOIN_GRACE_S)
        make = partial(call_entity, call)
        return CoordinatorCall(call.api_key, VERSIONS_MAX[call.api_key], make, timeout_s)

    def read(self, entity: Any) -> ClassicAnswer:
        """Return an answer's values."""
        return read_call_answer(entity)

    def answered(self, answer: Any, now_s: float) -> None:
        """Take what `read` returned. Raises: FrameInvalid, an assignment is none."""
        self.machine.answered(answer, now_s)

    def refused(self, code: int, name: str, message: str, now_s: float) -> None:
        """Take a refusal that no answer of the coordinator holds."""
        self.machine.answered(ClassicAnswer(code=code, name=name, message=message), now_s)


Line = ConsumerLine | ClassicLine
