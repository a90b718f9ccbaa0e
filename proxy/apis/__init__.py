"""THE routing table: every API key that keylane lets through, its versions, who serves it.

In:    a request's header.  Out: its `Route`.
Source: Kafka 4.3 message schemas, for the broker listener.

A key that is not here is hidden in ApiVersions and refused. Versions end where keylane has
read the schema: a newer broker's or client's are clamped, so that nothing passes unread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
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
from keylane.proxy.apis.connection.api_versions import clamp, names_librdkafka, refuse_version
from keylane.proxy.apis.connection.describe_topics import handle_describe_topic_partitions
from keylane.proxy.apis.connection.discovery import handle_describe_cluster, handle_find_coordinator
from keylane.proxy.apis.connection.metadata import handle_metadata
from keylane.proxy.apis.connection.sasl import (
    handle_sasl_handshake,
    note_login,
    relays_sasl_authenticate,
)
from keylane.proxy.apis.groups.consumer_describe import handle_consumer_group_describe
from keylane.proxy.apis.groups.consumer_heartbeat import (
    handle_consumer_group_heartbeat,
    handle_streams_group_heartbeat,
)
from keylane.proxy.apis.groups.describe_groups import without_hidden_names
from keylane.proxy.apis.groups.heartbeat import relays_heartbeat
from keylane.proxy.apis.groups.join_group import (
    handle_join_group,
    judge_join_answer,
    relays_join_group,
)
from keylane.proxy.apis.groups.list_groups import (
    handle_list_groups,
    handle_unregister_broker,
    relays_alone,
)
from keylane.proxy.apis.groups.share_groups import (
    handle_alter_share_offsets,
    handle_delete_share_offsets,
    handle_describe_share_offsets,
    handle_share_group_heartbeat,
)
from keylane.proxy.apis.groups.sync_group import handle_sync_group, relays_sync_group
from keylane.proxy.apis.records.delete_records import handle_delete_records
from keylane.proxy.apis.records.fetch import handle_fetch, relays_fetch
from keylane.proxy.apis.records.list_offsets import (
    handle_list_offsets,
    handle_offset_for_leader_epoch,
)
from keylane.proxy.apis.records.produce import handle_produce, relays_produce
from keylane.proxy.apis.records.producers import (
    handle_describe_producers,
    handle_describe_transactions,
)
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.endpoints import with_own_endpoints
from keylane.proxy.apis.shared.own_group import FLEXIBLE_FROM, but_own_group
from keylane.proxy.apis.shared.own_topics import (
    guarding,
    guarding_id,
    guarding_partitions,
    without_own_id,
)
from keylane.proxy.apis.shared.refusals import (
    at_coordinator,
    coordinating,
    refusing,
    relay_or_refuse,
)
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers

PRODUCE: Final = 0
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36
BEFORE_LOGIN: Final = frozenset({SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE})
OFFERED_FROM: Final = {PRODUCE: 0, SASL_HANDSHAKE: 0}
"""Lowest versions that are told where the broker has them, though they are refused.

librdkafka 2.3 compresses with gzip, snappy and lz4 only where Produce v0 is offered (KAFKA-18659),
and makes a SaslHandshake only where v0 of it is (`rd_kafka_feature_map`); it sends the highest.
"""
Handler = Callable[[Request, Context], Awaitable[Buffers]]
IsRelayed = Callable[[Request, Context], bool]
Patch = Callable[[Request, Frame, Context], Buffers]


JOIN_GROUP: Final[tuple[Handler, IsRelayed, Patch]] = (
    coordinating(handle_join_group), at_coordinator(relays_join_group), judge_join_answer,
)  # fmt: skip
SYNC_GROUP_ROUTE: Final[tuple[Handler, IsRelayed, Patch]] = (
    coordinating(handle_sync_group), at_coordinator(relays_sync_group), note_given,
)  # fmt: skip
BYTES_MAX: Final = 2 << 20
"""Of requests without records: names of some 40,000 topics. Each entry of them costs time."""
BYTES_MAX_OF: Final[Mapping[int, int | None]] = {
    PRODUCE: None,
    1: 1 << 20,  # Fetch: 20,000 partitions, in a first request
    8: 4 << 20,  # OffsetCommit: each partition may have 4 KiB of metadata
    11: 4 << 20,  # JoinGroup: names once per assignor
    14: None,  # SyncGroup: the leader's has the assignments of all members, and is passed on
    28: 4 << 20,  # TxnOffsetCommit: as OffsetCommit
}
OWN_READERS: Final = frozenset({PRODUCE, 1, 11, 12, 14})
"""APIs whose bodies are not read as kio entities."""
AUTHENTICATE: Final[tuple[None, IsRelayed, Patch]] = (None, relays_sasl_authenticate, note_login)
PATCHED: Final[Mapping[int, Patch]] = {15: without_hidden_names}
"""Answers of `RELAYED` that are looked at on the way back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How one API is treated."""

    api_key: int
    name: str
    version_min: int
    version_max: int
    handler: Handler | None = None
    """None: always relayed as bytes."""
    relays: IsRelayed | None = None
    """A cheap look that tells that this very request needs no handler; without one always so."""
    patch: Patch | None = None
    """What is done to the answer of a relayed request; None: nothing."""
    bytes_max: int | None = None
    """Of a request that keylane looks into; None: it is relayed, or bounded by its records."""
    is_decoded: bool = False
    """Whether the handler takes the body as a kio entity, made beside the loop if it is large."""

    @property
    def is_before_login(self) -> bool:
        """Whether a broker takes it from a client that it does not know yet."""
        return self.api_key in BEFORE_LOGIN

    def check(self, request: Request, *, may_relay: bool) -> None:
        """Whether a request is taken at this point, and of this size. Raises: FrameInvalid."""
        if not may_relay and not self.is_before_login:
            raise FrameInvalid(f"{self.name} before the login")
        if self.bytes_max is not None and len(request.frame) > self.bytes_max:
            size = f"{len(request.frame)} bytes, at most {self.bytes_max}"
            raise FrameInvalid(f"{self.name} has {size}")

    def is_relayed(self, request: Request, context: Context) -> bool:
        """Whether the request goes upstream untouched, and its answer back."""
        if self.handler is None:
            return self.relays is None or self.relays(request, context)
        return self.relays is not None and self.relays(request, context)


async def handle_api_versions(request: Request, context: Context) -> Buffers:
    """ApiVersions v0-4: what the broker offers, clamped to what is served here."""
    served = {
        key: (OFFERED_FROM.get(key, route.version_min), route.version_max)
        for key, route in ROUTES.items()
    }
    if request.api_version > ROUTES[API_VERSIONS].version_max:
        return refuse_version(request, ROUTES[API_VERSIONS].version_max)
    context.is_librdkafka = names_librdkafka(request)
    pending = context.send((request.frame,))
    context.release()
    return clamp(request, await pending, served)


def _table() -> dict[int, Route]:
    routes: list[Route] = []

    def serve(
        key: int,
        name: str,
        low: int,
        high: int,
        handler: Handler | None,
        relays: IsRelayed | None = None,
        patch: Patch | None = None,
    ) -> None:
        if key in FLEXIBLE_FROM:  # it names a group
            handler, relays = but_own_group(handler, relays)
        route = Route(
            api_key=key,
            name=name,
            version_min=low,
            version_max=high,
            handler=handler,
            relays=relays,
            patch=patch,
            bytes_max=None if handler is None else BYTES_MAX_OF.get(key, BYTES_MAX),
            is_decoded=handler is not None and key not in OWN_READERS,
        )
        routes.append(route)

    serve(PRODUCE, "Produce", 3, 13, handle_produce, relays_produce, with_own_endpoints)
    serve(1, "Fetch", 4, 17, handle_fetch, relays_fetch, with_own_endpoints)
    serve(2, "ListOffsets", 1, 11, handle_list_offsets)
    serve(3, "Metadata", 0, 13, handle_metadata)
    serve(8, "OffsetCommit", 2, 10, refusing(handle_offset_commit))
    serve(9, "OffsetFetch", 1, 10, refusing(handle_offset_fetch))
    serve(10, "FindCoordinator", 0, 6, handle_find_coordinator)
    serve(11, "JoinGroup", 0, 9, *JOIN_GROUP)
    serve(12, "Heartbeat", 0, 4, relay_or_refuse, at_coordinator(relays_heartbeat))
    serve(14, "SyncGroup", 0, 5, *SYNC_GROUP_ROUTE)
    serve(16, "ListGroups", 0, 5, handle_list_groups, relays_alone)
    serve(SASL_HANDSHAKE, "SaslHandshake", 1, 1, handle_sasl_handshake)
    serve(API_VERSIONS, "ApiVersions", 0, 4, handle_api_versions)
    serve(23, "OffsetForLeaderEpoch", 2, 4, handle_offset_for_leader_epoch)
    serve(22, "InitProducerId", 0, 5, guarding_id(None), without_own_id())
    serve(24, "AddPartitionsToTxn", 0, 3, guarding_id(guarding_partitions(handle_add_partitions)))
    serve(25, "AddOffsetsToTxn", 0, 4, guarding_id(None), without_own_id())
    serve(26, "EndTxn", 0, 5, guarding_id(handle_end_txn), without_own_id(relays_end_txn))
    serve(28, "TxnOffsetCommit", 0, 5, guarding_id(refusing(handle_txn_offset_commit)))
    serve(SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, *AUTHENTICATE)
    serve(42, "DeleteGroups", 0, 2, refusing(handle_delete_groups))
    serve(47, "OffsetDelete", 0, 0, refusing(handle_offset_delete))
    serve(60, "DescribeCluster", 0, 2, handle_describe_cluster)
    serve(64, "UnregisterBroker", 0, 0, handle_unregister_broker, relays_alone)
    serve(68, "ConsumerGroupHeartbeat", 0, 1, handle_consumer_group_heartbeat)
    serve(78, "ShareFetch", 1, 2, None, None, with_own_endpoints)
    serve(79, "ShareAcknowledge", 1, 2, None, None, with_own_endpoints)
    serve(88, "StreamsGroupHeartbeat", 0, 0, handle_streams_group_heartbeat)
    for key, name, low, high, handler in ADMINISTRATION:
        serve(key, name, low, high, handler)
    for key, name, low, high in RELAYED:
        serve(key, name, low, high, None, None, PATCHED.get(key))
    return {route.api_key: route for route in routes}


ADMINISTRATION: Final[tuple[tuple[int, str, int, int, Handler], ...]] = (
    (19, "CreateTopics", 2, 7, guarding(handle_create_topics)),
    (20, "DeleteTopics", 1, 6, guarding(handle_delete_topics)),
    (21, "DeleteRecords", 0, 2, guarding(handle_delete_records)),
    (30, "CreateAcls", 1, 3, handle_create_acls),
    (32, "DescribeConfigs", 1, 4, handle_describe_configs),
    (33, "AlterConfigs", 0, 2, guarding(handle_alter_configs)),
    (34, "AlterReplicaLogDirs", 1, 2, handle_alter_replica_log_dirs),
    (35, "DescribeLogDirs", 1, 5, handle_describe_log_dirs),
    (37, "CreatePartitions", 0, 3, guarding(handle_create_partitions)),
    (43, "ElectLeaders", 0, 2, handle_elect_leaders),
    (44, "IncrementalAlterConfigs", 0, 1, guarding(handle_alter_configs)),
    (45, "AlterPartitionReassignments", 0, 1, handle_alter_reassignments),
    (46, "ListPartitionReassignments", 0, 0, handle_list_reassignments),
    (61, "DescribeProducers", 0, 0, handle_describe_producers),
    (65, "DescribeTransactions", 0, 0, handle_describe_transactions),
    (69, "ConsumerGroupDescribe", 0, 1, handle_consumer_group_describe),
    (75, "DescribeTopicPartitions", 0, 0, handle_describe_topic_partitions),
    (76, "ShareGroupHeartbeat", 1, 1, handle_share_group_heartbeat),
    (90, "DescribeShareGroupOffsets", 0, 1, handle_describe_share_offsets),
    (91, "AlterShareGroupOffsets", 0, 0, handle_alter_share_offsets),
    (92, "DeleteShareGroupOffsets", 0, 0, handle_delete_share_offsets),
)
"""Calls that name topics, partitions or brokers, and read or change what they are."""

# WriteTxnMarkers, controller and share state calls are between brokers only.
RELAYED: Final = (
    (13, "LeaveGroup", 0, 5),
    (15, "DescribeGroups", 0, 6),
    (29, "DescribeAcls", 1, 3),
    (31, "DeleteAcls", 1, 3),
    (38, "CreateDelegationToken", 1, 3),
    (39, "RenewDelegationToken", 1, 2),
    (40, "ExpireDelegationToken", 1, 2),
    (41, "DescribeDelegationToken", 1, 3),
    (48, "DescribeClientQuotas", 0, 1),
    (49, "AlterClientQuotas", 0, 1),
    (50, "DescribeUserScramCredentials", 0, 0),
    (51, "AlterUserScramCredentials", 0, 0),
    (55, "DescribeQuorum", 0, 2),
    (57, "UpdateFeatures", 0, 2),
    (66, "ListTransactions", 0, 2),
    (71, "GetTelemetrySubscriptions", 0, 0),
    (72, "PushTelemetry", 0, 0),
    (74, "ListConfigResources", 0, 1),
    (77, "ShareGroupDescribe", 1, 1),
    (80, "AddRaftVoter", 0, 1),
    (81, "RemoveRaftVoter", 0, 0),
    (89, "StreamsGroupDescribe", 0, 0),
)
ROUTES: Final = _table()


def route_of(request: Request) -> Route:
    """The request's route. Raises: FrameInvalid for a key or version that is not served."""
    route = ROUTES.get(request.api_key)
    if route is None:
        raise FrameInvalid(f"API key {request.api_key} is not served")
    is_version_probe = request.api_key == API_VERSIONS  # answered with UNSUPPORTED_VERSION, KIP-511
    if not route.version_min <= request.api_version <= route.version_max and not is_version_probe:
        raise FrameInvalid(f"{route.name} v{request.api_version} is not served")
    return route
