"""Request and response headers: which API, which version, whose answer.

Source: RequestHeader.json, ResponseHeader.json and "flexibleVersions" of every message of
Apache Kafka 4.3; KIP-482 (tagged fields), KIP-511 (ApiVersions answers in header v0).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from keylane.errors import FrameInvalid
from keylane.wire.primitives import Buffer, skip_tags


class ApiKey(IntEnum):
    """Every API key of Apache Kafka 4.3."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92

    @property
    def schema_name(self) -> str:
        """The name of Kafka's message schemas, such as `OffsetCommit`."""
        return self.name.title().replace("_", "")


N: Final = 1 << 15  # above every int16 version: never flexible, or gone before Kafka 4
_FLEXIBLE_FROM: Final = (
    9, 12, 6, 9, N, N, N, N, 8, 6,  # 0 to 9
    3, 6, 4, 4, 4, 5, 3, N, 3, 5,  # 10 to 19
    4, 2, 2, 4, 3, 3, 3, 1, 3, 2,  # 20 to 29
    2, 2, 4, 2, 2, 2, 2, 2, 2, 2,  # 30 to 39
    2, 2, 2, 2, 1, 0, 0, N, 1, 1,  # 40 to 49
    0, 0, 0, 1, 1, 0, 0, 0, 0, 0,  # 50 to 59
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  # 60 to 69
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  # 70 to 79
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  # 80 to 89
    0, 0, 0,  # 90 to 92
)  # fmt: skip

REQUEST_HEADER: Final = struct.Struct(">hhih")  # up to and with the client id's length
REQUEST_FIXED: Final = struct.Struct(">ihhih")  # the same behind a frame size
NO_CLIENT_ID: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """Head of every request."""

    api_key: int
    """An `ApiKey`, or a number that this version of keylane has no name for."""
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int
    """Position of the body in the frame that the header was read from."""


def read_request_header(frame: memoryview | bytes | bytearray, position: int = 0) -> RequestHeader:
    """Read the request header at `position` (0 for a frame without its size, 4 with it).

    Tagged fields are skipped: no version of Kafka defines one. An unknown API key is read as
    header v1, which is right up to the client id, and its body is never decoded.

    Raises:
        FrameInvalid: the frame ends inside the header, or the client id is not UTF-8.
    """
    body = position + REQUEST_HEADER.size
    if position < 0 or len(frame) < body:
        raise FrameInvalid(f"request of {len(frame)} bytes ends inside its header")
    api_key, version, correlation_id, size = REQUEST_HEADER.unpack_from(frame, position)
    client_id = None
    if size >= 0:
        if len(frame) < body + size:
            raise FrameInvalid(f"client id of {size} bytes passes the end of the request")
        try:
            client_id = str(frame[body : body + size], "utf-8")
        except UnicodeDecodeError:
            raise FrameInvalid("client id is not UTF-8") from None
        body += size
    elif size != NO_CLIENT_ID:
        raise FrameInvalid(f"client id of {size} bytes")
    if is_flexible(api_key, version):
        body = skip_tags(frame, body, len(frame))
    return RequestHeader(
        api_key=api_key,
        api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
        body_position=body,
    )


def is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether the version has compact lengths and tagged fields; False for unknown keys."""
    return 0 <= api_key < len(_FLEXIBLE_FROM) and api_version >= _FLEXIBLE_FROM[api_key]


def write_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, body: Buffer
) -> bytes:
    """A whole request frame: size, header, body."""
    head = write_request_head(api_key, api_version, correlation_id, client_id, len(body))
    return b"".join((head, body))


def write_request_head(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, body_bytes: int
) -> bytes:
    """Frame size and header of a request whose body of `body_bytes` bytes follows.

    Raises:
        ValueError: the client id does not fit in an int16 length, or the frame in an int32.
    """
    name = b"" if client_id is None else client_id.encode()
    tags = b"\x00" if is_flexible(api_key, api_version) else b""
    size = REQUEST_HEADER.size + len(name) + len(tags) + body_bytes
    if len(name) > 0x7FFF or size > 0x7FFF_FFFF:
        raise ValueError(f"request of {size} bytes, client id of {len(name)}: too long")
    name_size = NO_CLIENT_ID if client_id is None else len(name)
    fixed = REQUEST_FIXED.pack(size, api_key, api_version, correlation_id, name_size)
    return fixed + name + tags


def response_body_position(api_key: int, api_version: int) -> int:
    """Return where the body starts in a response frame without its size, as keylane writes it.

    Response header v0 is the correlation id, v1 adds tagged fields: none are defined, so one byte;
    a broker may send some (`find_response_body`). ApiVersions always answers in v0, so that a
    client can read it whatever version the broker speaks (KIP-511).
    """
    if api_key == ApiKey.API_VERSIONS or not is_flexible(api_key, api_version):
        return 4
    return 5


def find_response_body(frame: Buffer, position: int, api_key: int, api_version: int) -> int:
    """Return where the body starts in a response whose correlation id is at `position`.

    Raises:
        FrameInvalid: the frame ends inside the header.
    """
    body = position + response_body_position(api_key, api_version)
    if body == position + 4 or (body <= len(frame) and frame[body - 1] == 0):
        return body  # no tagged field, the rule
    return skip_tags(frame, position + 4, len(frame))
