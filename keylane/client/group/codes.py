"""Error codes that both protocols of a group share, by what a member does about them.

Source: Kafka protocol guide, "Error Codes".
"""

from __future__ import annotations

from typing import Final

LOADING: Final = frozenset({14})
"""COORDINATOR_LOAD_IN_PROGRESS: the same node will serve the group soon."""
MOVED: Final = frozenset({15, 16})
"""COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: another node may serve it."""
RETRIABLE: Final = frozenset({-1, 3, 7, 13})
"""UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, NETWORK_EXCEPTION."""
UNKNOWN_MEMBER_ID: Final = 25
FENCED_MEMBER_EPOCH: Final = 110
ENDED: Final = frozenset({UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH})
"""The coordinator has no such member (any more)."""
UNRELEASED_INSTANCE_ID: Final = 111
UNSUPPORTED_VERSION: Final = 35
INCONSISTENT_GROUP_PROTOCOL: Final = 23
"""Members of a classic group have no strategy in common, or the group is of another kind."""
GROUP_ID_NOT_FOUND: Final = 69
"""Of a heartbeat of the consumer protocol: the group is a classic one."""
INVALID_REQUEST: Final = 42
"""With a message that says what of the request."""
