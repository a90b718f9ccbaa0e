"""THE routing table: every API key that keylane lets through, its versions, its handler.

Source: Kafka 4.3 message schemas, for the broker listener.

A key that is not here is hidden in ApiVersions and refused. Versions end where keylane has
read the schema: a newer broker's or client's are clamped, so that nothing passes unread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from keylane.errors import FrameInvalid
from keylane.proxy.apis.admin.acls import handle_create_acls
from keylane.proxy.apis.admin.configs import handle_alter_configs, handle_describe_configs
from keylane.proxy.apis.admin.elections import handle_elect_leaders
from keylane.proxy.apis.admin.log_dirs import (
    handle_alter_replica_log_dirs,
    handle_describe_log_dirs,
)
from keylane.proxy.apis.admin.reassignments import (
    handle_alter_reassignments,
    handle_list_reassignments,
)
from keylane.proxy.apis.admin.topic_changes import (
    handle_create_partitions,
    handle_create_topics,
    handle_delete_topics,
)
from keylane.proxy.apis.commits.offset_commit import handle_offset_commit
from keylane.proxy.apis.commits.offset_delete import handle_delete_groups, handle_offset_delete
from keylane.proxy.apis.commits.offset_fetch import handle_offset_fetch
from keylane.proxy.apis.commits.steps_back import note_given
from keylane.proxy.apis.commits.transactions import (
    handle_add_partitions,
    handle_end_txn,
    handle_txn_offset_commit,
    relays_end_txn,
)
from keylane.proxy.apis.connection.api_versions import (
    clamp,
    names_librdkafka,
    read_offer,
    refuse_version,
)
from keylane.proxy.apis.connection.describe_topics import handle_describe_topic_partitions
from keylane.proxy.apis.connection.discovery import (
    handle_describe_cluster,
    handle_find_coordinator,
    handle_unregister_broker,
)
from keylane.proxy.apis.connection.metadata import handle_metadata
from keylane.proxy.apis.connection.sasl import (
    TOKEN_BYTES_MAX,
    handle_sasl_handshake,
    note_login,
)
from keylane.proxy.apis.groups.consumer.heartbeat import handle_consumer_group_heartbeat
from keylane.proxy.apis.groups.describe_groups import (
    handle_consumer_group_describe,
    handle_list_groups,
    without_hidden_names,
)
from keylane.proxy.apis.groups.heartbeat import note_beat
from keylane.proxy.apis.groups.join_group import (
    judge_relayed_join,
    look_join_group,
)
from keylane.proxy.apis.groups.load_checks import judge_beat
from keylane.proxy.apis.groups.share_groups import (
    handle_alter_share_offsets,
    handle_delete_share_offsets,
    handle_describe_share_offsets,
    handle_share_group_heartbeat,
)
from keylane.proxy.apis.groups.streams_heartbeat import handle_streams_group_heartbeat
from keylane.proxy.apis.groups.sync_group import look_sync_group
from keylane.proxy.apis.records.delete_records import handle_delete_records
from keylane.proxy.apis.records.fetch import look_fetch
from keylane.proxy.apis.records.list_offsets import (
    handle_list_offsets,
    handle_offset_for_leader_epoch,
)
from keylane.proxy.apis.records.produce import look_produce
from keylane.proxy.apis.records.producers import (
    handle_describe_producers,
    handle_describe_transactions,
)
from keylane.proxy.apis.share.acknowledge import look_share_acknowledge
from keylane.proxy.apis.share.fetch import look_share_fetch
from keylane.proxy.apis.share.node_members import handle_share_session
from keylane.proxy.apis.share.plain_acks import note_plain_acks
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.member_ids import note_joining, note_syncing
from keylane.proxy.apis.shared.own_names import (
    NAMES_GROUP,
    but_own_group,
    guarding,
    guarding_id,
    guarding_partitions,
)
from keylane.proxy.apis.shared.places import with_own_endpoints
from keylane.proxy.apis.shared.refusals import (
    at_coordinator,
    refusing,
)
from keylane.proxy.apis.shared.relay import Handler, Look, among_nodes, forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.wire.header import ApiKey

BEFORE_LOGIN: Final = frozenset(
    {ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE}
)
OFFERED_FROM: Final[Mapping[int, int]] = {ApiKey.PRODUCE: 0, ApiKey.SASL_HANDSHAKE: 0}
"""Lowest versions that are offered where the broker has them, though they are refused.

librdkafka 2.3 compresses with gzip, snappy and lz4 only where Produce v0 is offered (KAFKA-18659),
and makes a SaslHandshake only where v0 of it is (`rd_kafka_feature_map`); it sends the highest.
"""
Note = Callable[[Request, Context], None]
Patch = Callable[[Request, Frame, Context], Buffers]

BYTES_MAX: Final = 2 << 20
"""Bound of requests without records: names of some 40,000 topics. Each entry takes time."""
BYTES_MAX_OF: Final[Mapping[ApiKey, int | None]] = {
    ApiKey.PRODUCE: None,
    ApiKey.FETCH: 1 << 20,  # 20,000 partitions, in a first request
    ApiKey.OFFSET_COMMIT: 4 << 20,  # each partition may have 4 KiB of metadata
    ApiKey.JOIN_GROUP: 4 << 20,  # names once per assignor
    ApiKey.SYNC_GROUP: None,  # the leader's has all members' assignments, and is passed on
    ApiKey.TXN_OFFSET_COMMIT: 4 << 20,  # like OffsetCommit
    ApiKey.SASL_AUTHENTICATE: TOKEN_BYTES_MAX,
}
OWN_READERS: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.SYNC_GROUP,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    }
)
"""APIs whose bodies are not read as kio entities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The treatment of one API."""

    api_key: int
    name: str
    version_min: int
    version_max: int
    handler: Handler | None = None
    """Handler of every request; None: relayed as bytes, unless `look` finds a handler."""
    look: Look | None = None
    """Chooses the handler of one request; without effects, asked once."""
    note: Note | None = None
    """Notes a request that is relayed; called once."""
    patch: Patch | None = None
    """Changes the answer of a relayed request; None: it stays."""
    bytes_max: int | None = None
    """Bound of a request that keylane reads; None: it is relayed, or its records are bounded."""
    is_decoded: bool = False
    """True: the handler gets the body as a kio entity, made beside the loop if it is large."""

    @property
    def is_before_login(self) -> bool:
        """Return whether a broker accepts it from a client before the login."""
        return self.api_key in BEFORE_LOGIN

    def check(self, request: Request, *, may_relay: bool) -> None:
        """Refuse a request before the login, or of too many bytes. Raises: FrameInvalid."""
        if not may_relay and not self.is_before_login:
            raise FrameInvalid(f"{self.name} before the login: log in first")
        if self.bytes_max is not None and len(request.frame) > self.bytes_max:
            size = f"{len(request.frame)} bytes, at most {self.bytes_max}"
            raise FrameInvalid(f"{self.name} has {size}")

    def handler_of(self, request: Request, context: Context) -> Handler | None:
        """Return the request's handler; None: request and answer are relayed."""
        return self.handler if self.look is None else self.look(request, context)


async def handle_api_versions(request: Request, context: Context) -> Buffers:
    """Answer ApiVersions v0-4: the broker's offer, clamped to the versions served here."""
    served = {
        key: (OFFERED_FROM.get(key, route.version_min), route.version_max)
        for key, route in ROUTES.items()
    }
    if request.api_version > ROUTES[ApiKey.API_VERSIONS].version_max:
        return refuse_version(request, ROUTES[ApiKey.API_VERSIONS].version_max)
    context.is_librdkafka = names_librdkafka(request)
    answer = read_offer(request, await forward(request, context))
    context.has_consumer_groups = any(
        entry.api_key == ApiKey.CONSUMER_GROUP_DESCRIBE for entry in answer.api_keys
    )
    return clamp(request, answer, served)


def _ordered_or(look: Look) -> Look:
    """Return a look for share sessions: ordered groups are served, others pass."""
    passes = among_nodes(handle_share_session)
    return lambda request, context: look(request, context) or passes(request, context)


def _route(
    key: ApiKey,
    low: int,
    high: int,
    handler: Handler | None = None,
    *,
    look: Look | None = None,
    note: Note | None = None,
    patch: Patch | None = None,
) -> Route:
    if key in NAMES_GROUP:
        look = but_own_group(handler, look)
    is_served = handler is not None or look is not None
    bytes_max: int | None = BYTES_MAX if is_served else None
    return Route(
        api_key=key,
        name=key.schema_name,
        version_min=low,
        version_max=high,
        handler=handler,
        look=look,
        note=note,
        patch=patch,
        bytes_max=BYTES_MAX_OF.get(key, bytes_max),
        is_decoded=is_served and key not in OWN_READERS,
    )


_TABLE: Final = (
    _route(ApiKey.PRODUCE, 3, 13, look=look_produce, patch=with_own_endpoints),
    _route(ApiKey.FETCH, 4, 17, look=look_fetch, patch=with_own_endpoints),
    _route(ApiKey.LIST_OFFSETS, 1, 11, handle_list_offsets),
    _route(ApiKey.METADATA, 0, 13, handle_metadata),
    _route(ApiKey.OFFSET_COMMIT, 2, 10, refusing(handle_offset_commit)),
    _route(ApiKey.OFFSET_FETCH, 1, 10, refusing(handle_offset_fetch)),
    _route(ApiKey.FIND_COORDINATOR, 0, 6, handle_find_coordinator),
    _route(
        ApiKey.JOIN_GROUP,
        0,
        9,
        look=at_coordinator(look_join_group),
        note=note_joining,
        patch=judge_relayed_join,
    ),
    _route(ApiKey.HEARTBEAT, 0, 4, look=at_coordinator(), note=note_beat, patch=judge_beat),
    _route(
        ApiKey.SYNC_GROUP,
        0,
        5,
        look=at_coordinator(look_sync_group),
        note=note_syncing,
        patch=note_given,
    ),
    _route(ApiKey.LIST_GROUPS, 0, 5, look=among_nodes(handle_list_groups)),
    _route(ApiKey.SASL_HANDSHAKE, 1, 1, handle_sasl_handshake),
    _route(ApiKey.API_VERSIONS, 0, 4, handle_api_versions),
    _route(ApiKey.INIT_PRODUCER_ID, 0, 5, look=guarding_id()),
    _route(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, handle_offset_for_leader_epoch),
    _route(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        0,
        3,
        look=guarding_id(guarding_partitions(handle_add_partitions)),
    ),
    _route(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, look=guarding_id()),
    _route(ApiKey.END_TXN, 0, 5, look=guarding_id(handle_end_txn, relays_end_txn)),
    _route(ApiKey.TXN_OFFSET_COMMIT, 0, 5, look=guarding_id(refusing(handle_txn_offset_commit))),
    _route(ApiKey.SASL_AUTHENTICATE, 0, 2, patch=note_login),
    _route(ApiKey.DELETE_GROUPS, 0, 2, refusing(handle_delete_groups)),
    _route(ApiKey.OFFSET_DELETE, 0, 0, refusing(handle_offset_delete)),
    _route(ApiKey.DESCRIBE_CLUSTER, 0, 2, handle_describe_cluster),
    _route(ApiKey.UNREGISTER_BROKER, 0, 0, look=among_nodes(handle_unregister_broker)),
    _route(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        0,
        1,
        look=at_coordinator(lambda *_: refusing(handle_consumer_group_heartbeat)),
    ),
    _route(
        ApiKey.SHARE_FETCH,
        1,
        2,
        look=_ordered_or(look_share_fetch),
        note=note_plain_acks,
        patch=with_own_endpoints,
    ),
    _route(
        ApiKey.SHARE_ACKNOWLEDGE,
        1,
        2,
        look=_ordered_or(look_share_acknowledge),
        note=note_plain_acks,
        patch=with_own_endpoints,
    ),
    _route(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 0, refusing(handle_streams_group_heartbeat)),
    _route(ApiKey.DESCRIBE_GROUPS, 0, 6, patch=without_hidden_names),
    # Calls that name topics, partitions or brokers, and read or change what they are.
    _route(ApiKey.CREATE_TOPICS, 2, 7, guarding(handle_create_topics)),
    _route(ApiKey.DELETE_TOPICS, 1, 6, guarding(handle_delete_topics)),
    _route(ApiKey.DELETE_RECORDS, 0, 2, guarding(handle_delete_records)),
    _route(ApiKey.CREATE_ACLS, 1, 3, handle_create_acls),
    _route(ApiKey.DESCRIBE_CONFIGS, 1, 4, handle_describe_configs),
    _route(ApiKey.ALTER_CONFIGS, 0, 2, guarding(handle_alter_configs)),
    _route(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, handle_alter_replica_log_dirs),
    _route(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, handle_describe_log_dirs),
    _route(ApiKey.CREATE_PARTITIONS, 0, 3, guarding(handle_create_partitions)),
    _route(ApiKey.ELECT_LEADERS, 0, 2, handle_elect_leaders),
    _route(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, guarding(handle_alter_configs)),
    _route(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, handle_alter_reassignments),
    _route(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, handle_list_reassignments),
    _route(ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle_describe_producers),
    _route(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, handle_describe_transactions),
    _route(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, handle_consumer_group_describe),
    _route(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, handle_describe_topic_partitions),
    _route(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, handle_share_group_heartbeat),
    _route(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, handle_describe_share_offsets),
    _route(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, handle_alter_share_offsets),
    _route(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, handle_delete_share_offsets),
    # Relayed as bytes. WriteTxnMarkers, controller and share state calls are between brokers only.
    _route(ApiKey.LEAVE_GROUP, 0, 5),
    _route(ApiKey.DESCRIBE_ACLS, 1, 3),
    _route(ApiKey.DELETE_ACLS, 1, 3),
    _route(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3),
    _route(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2),
    _route(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2),
    _route(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3),
    _route(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1),
    _route(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1),
    _route(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0),
    _route(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0),
    _route(ApiKey.DESCRIBE_QUORUM, 0, 2),
    _route(ApiKey.UPDATE_FEATURES, 0, 2),
    _route(ApiKey.LIST_TRANSACTIONS, 0, 2),
    _route(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0),
    _route(ApiKey.PUSH_TELEMETRY, 0, 0),
    _route(ApiKey.LIST_CONFIG_RESOURCES, 0, 1),
    _route(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1),
    _route(ApiKey.ADD_RAFT_VOTER, 0, 1),
    _route(ApiKey.REMOVE_RAFT_VOTER, 0, 0),
    _route(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 0),
)
ROUTES: Final[dict[int, Route]] = {route.api_key: route for route in _TABLE}


def route_of(request: Request) -> Route:
    """Return the request's route. Raises: FrameInvalid for a key or version that is not served."""
    route = ROUTES.get(request.api_key)
    if route is None:
        raise FrameInvalid(f"API key {request.api_key} is not served")
    if route.version_min <= request.api_version <= route.version_max:
        return route
    if request.api_key == ApiKey.API_VERSIONS:
        return route  # answered with UNSUPPORTED_VERSION, KIP-511
    raise FrameInvalid(f"{route.name} v{request.api_version} is not served")
