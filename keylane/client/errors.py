"""Errors of the Python consumer, and what a broker's error code means for it.

Source: Kafka protocol guide, "Error Codes"; KIP draft "Cooperative consumer processing semantic",
whose numbers come beside the nearest stock code (`keylane.wire.extensions.DRAFT_ERROR`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keylane.errors import GroupDenied as GroupDenied  # noqa: PLC0414 -- one of these
from keylane.errors import KeylaneError

NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REPLICA_NOT_AVAILABLE: Final = 9
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
ILLEGAL_GENERATION: Final = 22
UNKNOWN_MEMBER_ID: Final = 25
REBALANCE_IN_PROGRESS: Final = 27
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
KAFKA_STORAGE_ERROR: Final = 56
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
OFFSET_NOT_AVAILABLE: Final = 78
FENCED_INSTANCE_ID: Final = 82
UNSTABLE_OFFSET_COMMIT: Final = 88
UNKNOWN_TOPIC_ID: Final = 100
INCONSISTENT_TOPIC_ID: Final = 103
FENCED_MEMBER_EPOCH: Final = 110
STALE_MEMBER_EPOCH: Final = 113

INDIVIDUAL_COMMIT_NOT_ALLOWED: Final = 88
"""This one and the next are of the KIP draft."""
RANGE_FETCH_NOT_ALLOWED: Final = 89
OFFSET_TOO_OLD: Final = 91
MAX_INDIVIDUAL_COMMIT_REACHED: Final = 92

STALE_METADATA: Final = frozenset(
    {
        UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER,
        REPLICA_NOT_AVAILABLE, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
        OFFSET_NOT_AVAILABLE, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID,
    }
)  # fmt: skip
"""Another broker leads the partition, or is about to: look at the metadata and ask again."""
COORDINATOR_LOST: Final = frozenset({COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR})
COORDINATOR_BUSY: Final = frozenset({COORDINATOR_LOAD_IN_PROGRESS, UNSTABLE_OFFSET_COMMIT})
MEMBER_GONE: Final = frozenset(
    {ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID}
)
"""The group goes on without this member: it joins anew, and what it had is lost."""


class ClusterUnreachable(KeylaneError):
    """No bootstrap server answers; the text names them."""

    error_code = 13  # NETWORK_EXCEPTION
    retriable = True


class AuthenticationFailed(KeylaneError):
    """A bootstrap server refuses the user, the password, the token or the mechanism of the login.

    The text has the address and the server's reason.
    """

    error_code = 58  # SASL_AUTHENTICATION_FAILED


class Disconnected(KeylaneError):
    """The connection to a node ended, or could not be made, before its answer came."""

    error_code = 13  # NETWORK_EXCEPTION
    retriable = True


class RequestTimedOut(Disconnected):
    """A node did not answer in time; its connection was closed."""

    error_code = 7  # REQUEST_TIMED_OUT


class VersionUnsupported(KeylaneError):
    """The node speaks no version of a request that this client speaks."""

    error_code = 35  # UNSUPPORTED_VERSION


class BrokerRefused(KeylaneError):
    """A broker answered with an error code that has no class here."""

    def __init__(self, place: str, code: int) -> None:
        super().__init__(f"{place}: error {code} of the broker ({name_of(code)})")
        self.code = code


class TopicUnknown(KeylaneError):
    """No broker knows the topic, or the partition of it."""

    error_code = UNKNOWN_TOPIC_OR_PARTITION
    retriable = True


class TopicDenied(KeylaneError):
    """The broker does not let this client read the topic."""

    error_code = TOPIC_AUTHORIZATION_FAILED


class CoordinatorUnavailable(KeylaneError):
    """The group's coordinator did not serve a request in time."""

    error_code = COORDINATOR_NOT_AVAILABLE
    retriable = True


class OffsetMissing(KeylaneError):
    """A partition has no committed offset, and `auto_offset_reset` is "none"."""

    error_code = OFFSET_OUT_OF_RANGE


class OffsetOutOfRange(OffsetMissing):
    """The log has no such offset any more, or not yet, and `auto_offset_reset` is "none"."""


class RecordsCorrupt(KeylaneError):
    """A batch of the log cannot be read; seek past it to go on. Names topic, partition, offset."""

    error_code = CORRUPT_MESSAGE


class IndividualCommitNotAllowed(KeylaneError):
    """The group may not commit offsets one by one (KIP draft, 88)."""

    error_code = 42  # INVALID_REQUEST


class RangeFetchNotAllowed(KeylaneError):
    """The group may not fetch ranges of keys (KIP draft, 89)."""

    error_code = 42  # INVALID_REQUEST


class RangeFetchNotAccepted(KeylaneError):
    """This client takes whole partitions only, and was given ranges of keys (KIP draft, 90)."""

    error_code = 42  # INVALID_REQUEST


class RangesFull(KeylaneError):
    """The group has as many committed ranges as it may have (KIP draft, 92).

    What is done becomes one range when the records before it are done; commit again then.
    """

    error_code = REBALANCE_IN_PROGRESS
    retriable = True


class KeyRangesUnsupported(KeylaneError):
    """Ranges of keys need keylane, and the brokers do not announce it."""

    error_code = 35  # UNSUPPORTED_VERSION


class NotAssigned(KeylaneError):
    """The partition is not among those of this consumer."""

    error_code = 42  # INVALID_REQUEST


class PartitionLost(KeylaneError):
    """The partition belongs to another member: what was read of it cannot be committed."""

    error_code = UNKNOWN_MEMBER_ID


class ConsumerStopped(KeylaneError):
    """The consumer was not started, or was stopped."""

    error_code = 42  # INVALID_REQUEST


class GroupMissing(KeylaneError):
    """The call needs a `group_id`, and the consumer has none."""

    error_code = 24  # INVALID_GROUP_ID


_CLASSES: Final[Mapping[int, type[KeylaneError]]] = {
    UNKNOWN_TOPIC_OR_PARTITION: TopicUnknown,
    UNKNOWN_TOPIC_ID: TopicUnknown,
    TOPIC_AUTHORIZATION_FAILED: TopicDenied,
    GROUP_AUTHORIZATION_FAILED: GroupDenied,
    COORDINATOR_NOT_AVAILABLE: CoordinatorUnavailable,
    COORDINATOR_LOAD_IN_PROGRESS: CoordinatorUnavailable,
    NOT_COORDINATOR: CoordinatorUnavailable,
}
_DRAFT_CLASSES: Final[Mapping[int, type[KeylaneError]]] = {
    INDIVIDUAL_COMMIT_NOT_ALLOWED: IndividualCommitNotAllowed,
    RANGE_FETCH_NOT_ALLOWED: RangeFetchNotAllowed,
    MAX_INDIVIDUAL_COMMIT_REACHED: RangesFull,
}


def error_of(code: int, place: str, *, draft_code: int = NONE) -> KeylaneError:
    """Return the error that a broker's code means; `place` names topic, partition or group.

    draft_code: the KIP draft's number beside it, 0 for none.
    """
    draft_class = _DRAFT_CLASSES.get(draft_code)
    if draft_class is not None:
        return draft_class(f"{place}: {name_of(code)}")
    error_class = _CLASSES.get(code)
    if error_class is not None:
        return error_class(f"{place}: {name_of(code)}")
    return BrokerRefused(place, code)


def name_of(code: int) -> str:
    """Return Kafka's name of an error code, or its number."""
    from kio.schema.errors import ErrorCode  # noqa: PLC0415 -- loaded when the first error comes

    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
