"""Effects of a membership's machines: what the shell publishes to the consumer.

A machine collects them in the order in which they happened; `Effects.take` hands them over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from keylane.client.group.codes import INCONSISTENT_GROUP_PROTOCOL
from keylane.client.values import TopicPartition
from keylane.errors import KeylaneError
from keylane.wire.extensions import LaneRange


class PartsAssigned(NamedTuple):
    """New parts, with the meaning of those that are lane indexes."""

    parts: Mapping[TopicPartition, LaneRange | None]


class RevokeRequested(NamedTuple):
    """The group asks for these; they stay owned until they are released, or the deadline."""

    parts: frozenset[TopicPartition]
    deadline_s: float


class PartsLost(NamedTuple):
    """These have another owner, or may have one."""

    parts: frozenset[TopicPartition]


class GroupFailed(NamedTuple):
    """The member cannot go on: the error says why. All that it had was lost before."""

    error: GroupRefused


class CoordinatorMoved(NamedTuple):
    """The coordinator is to be looked up anew before the next request."""


Effect = PartsAssigned | RevokeRequested | PartsLost | GroupFailed | CoordinatorMoved


REMEDIES: Final = {
    INCONSISTENT_GROUP_PROTOCOL: (
        "a member of the classic protocol assigns by cooperative-sticky: let the others do so "
        "(partition.assignment.strategy), or take group_protocol='consumer' for all"
    ),
}
"""By the code of a refusal whose text does not say what to do."""


class GroupRefused(KeylaneError):
    """A coordinator refused a member in a way that a retry does not change."""

    def __init__(self, group_id: str, code: int, name: str, message: str | None) -> None:
        """code, name: of the answer, by Kafka's protocol guide; message: the broker's own."""
        text = message or REMEDIES.get(code, "no message")
        super().__init__(f"group {group_id}: {name} ({code}): {text}")
        self.group_id, self.code, self.broker_message = group_id, code, message


class Effects:
    """Effects that are not handed over yet."""

    def __init__(self) -> None:
        self._found: list[Effect] = []

    def add(self, effect: Effect) -> None:
        """Append one."""
        self._found.append(effect)

    def take(self) -> list[Effect]:
        """Return all, in their order, and forget them."""
        found, self._found = self._found, []
        return found
