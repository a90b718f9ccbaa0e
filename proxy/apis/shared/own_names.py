"""Keylane's own names in requests: the nodes' group, its topics and transactional ids.

Behaviour: no client is a member of the nodes' group, `__keylane_nodes`: calls that join it or
change it are answered GROUP_AUTHORIZATION_FAILED, and the broker is not asked. Calls that only
describe groups are the broker's matter. Topics and transactional ids are changed by clients that
may alter the cluster.
Not done: the same at the brokers' own listeners, which takes ACLs (docs/security.md).

Source: docs/decisions/034; KIP-430 (authorized operations), KIP-848, KIP-932, KIP-1071.

A right to all topics (`*`) is a common one, and was not given for keylane's own topics: a client
that can write there sets lanes of any group, and settings. The broker decides whether the client
may ALTER the cluster; where it has no authorizer, each client may. Requests that need that right
themselves (AlterPartitionReassignments, ElectLeaders, AlterReplicaLogDirs, CreateAcls) are the
broker's to judge.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.config.own_names import OWN_ID_START, OWN_TOPICS, is_own_id
from keylane.errors import FrameInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.refusals import refusal, refused_entry, with_refused
from keylane.proxy.apis.shared.relay import Handler, Look, Relays, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.node_values import GROUP
from keylane.proxy.topics.registry import TopicRegistry
from keylane.wire.header import ApiKey
from keylane.wire.parts import KeyedTopic
from keylane.wire.primitives import Reader
from keylane.wire.refused import entries_of

TOPIC_RESOURCE: Final = 2
REASON: Final = "keylane: this topic is keylane's own; to change it needs ALTER on the cluster"
SHORT_NAME: Final = len(GROUP).to_bytes(2, "big") + GROUP.encode()
COMPACT_NAME: Final = bytes([len(GROUP) + 1]) + GROUP.encode()
LONG_SIZE: Final = 0x80
"""First byte of a size that has several bytes: names of less than 127 may have them, too."""
NAMES_GROUP: Final = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.OFFSET_DELETE,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    }
)
"""APIs that name one group."""
BEHIND_TRANSACTION: Final = frozenset({ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT})
"""APIs that name a transactional id before the group."""
PRODUCER_BYTES: Final = 10
"""Bytes of the producer id and epoch between the two names."""


def guarding(handler: Handler) -> Handler:
    """The handler, without the entries that are refused; their results stand at their places."""

    async def served(request: Request, context: Context) -> Buffers:
        wanted = request.decode()
        field, entries = entries_of(wanted)
        name_of = NAME_OF[request.api_key]
        own = {
            position
            for position, entry in enumerate(entries)
            if await name_of(entry, context) in OWN_TOPICS
        }
        if not own or await context.may_alter_cluster():
            return await handler(request, context)
        _count_refused(request, len(own), context)
        refused = {
            position: refused_entry(
                request, entries[position], ErrorCode.topic_authorization_failed, REASON
            )
            for position in own
        }
        kept = tuple(entry for position, entry in enumerate(entries) if position not in own)
        answer = None
        if kept:
            reduced = Request(request.header, request.with_entity(replace(wanted, **{field: kept})))
            answer = request.decode_answer(b"".join(await handler(reduced, context)))
        return with_refused(request, answer, refused)

    return served


def guarding_id(handler: Handler | None = None, relays: Relays | None = None) -> Look:
    """Return a look that refuses keylane's transactional ids; others are handled, or relayed.

    relays: returns whether a request needs no handler.
    """

    async def checked(request: Request, context: Context) -> Buffers:
        wanted = request.decode()
        if await is_refused_id(_id_of(wanted), context):
            _count_refused(request, 1, context)
            return request.answer_entity(
                refusal(request, ErrorCode.transactional_id_authorization_failed)
            )
        return await (handler or relay)(request, context)

    def look(request: Request, context: Context) -> Handler | None:
        if may_name_own_id(request):
            return checked
        return None if relays is not None and relays(request, context) else handler

    return look


def guarding_partitions(handler: Handler) -> Handler:
    """Handle AddPartitionsToTxn: where one partition is refused, a broker adds none."""

    async def served(request: Request, context: Context) -> Buffers:
        topics = request.decode().v3_and_below_topics
        own = [topic.name in OWN_TOPICS for topic in topics]
        if not any(own) or await context.may_alter_cluster():
            return await handler(request, context)
        _count_refused(request, sum(own), context)
        answer = refusal(request, ErrorCode.operation_not_attempted)
        refused = refusal(
            request, ErrorCode.topic_authorization_failed
        ).results_by_topic_v3_and_below
        results = zip(own, refused, answer.results_by_topic_v3_and_below, strict=True)
        added = tuple(denied if is_own else other for is_own, denied, other in results)
        return request.answer_entity(replace(answer, results_by_topic_v3_and_below=added))

    return served


def names_own(topics: Iterable[KeyedTopic[object]], registry: TopicRegistry) -> bool:
    """Return whether a Produce request names a keylane topic; cheap: it runs per request."""
    own_ids = registry.own_topic_ids
    for topic in topics:  # noqa: SIM110 - `any` with a generator takes twice the time
        if topic.name in OWN_TOPICS or topic.topic_id in own_ids:
            return True
    return False


async def refused_topics(
    topics: Iterable[KeyedTopic[object]], context: Context
) -> frozenset[tuple[str | None, bytes | None]]:
    """Return refused topics of a Produce request, by the name and id that it uses."""
    own = [
        (topic.name, topic.topic_id) for topic in topics if names_own((topic,), context.registry)
    ]
    if not own or await context.may_alter_cluster():
        return frozenset()
    context.stats.own_names_refused["Produce"] += len(own)
    return frozenset(own)


def may_name_own_id(request: Request) -> bool:
    """Return whether a transactional id at the front of the body may be keylane's; cheap.

    Its length stands before it, in one byte or two, and four would be a message without an id.
    """
    return OWN_ID_START in bytes(request.body[:12])


async def is_refused_id(transactional_id: str | None, context: Context) -> bool:
    """Return whether the client may not use this transactional id."""
    if transactional_id is None or not is_own_id(transactional_id):
        return False
    return not await context.may_alter_cluster()


def _id_of(wanted: Any) -> str | None:
    name = "v3_and_below_transactional_id"
    found: str | None = getattr(wanted, name, None) or getattr(wanted, "transactional_id", None)
    return found


# -- the nodes' group --------------------------------------------------------------------


def names_own_group(request: Request) -> bool:
    """Return whether a request of one of these APIs is about the nodes' group; cheap if not."""
    frame, start = request.frame, request.body_position
    if request.api_key not in BEHIND_TRANSACTION:
        if not request.is_flexible:
            return frame[start : start + len(SHORT_NAME)] == SHORT_NAME
        if len(frame) > start and frame[start] < LONG_SIZE:
            return frame[start : start + len(COMPACT_NAME)] == COMPACT_NAME
    try:
        return _read_group(request) == GROUP
    except FrameInvalid:
        return False  # the broker refuses it


def _read_group(request: Request) -> str:
    reader = Reader(request.body, flexible=request.is_flexible)
    if request.api_key in BEHIND_TRANSACTION:
        reader.string()
        if request.api_key == ApiKey.ADD_OFFSETS_TO_TXN:
            reader.advance(PRODUCER_BYTES)
    return reader.string()


def but_own_group(handler: Handler | None, look: Look | None) -> Look:
    """Return a look that refuses the nodes' group, and treats all others as `Route` does."""

    def looked(request: Request, context: Context) -> Handler | None:
        if names_own_group(request):
            return _refuse
        return handler if look is None else look(request, context)

    return looked


async def _refuse(request: Request, _context: Context) -> Buffers:
    return request.answer_entity(refusal(request, ErrorCode.group_authorization_failed))


# -- topics, by API ----------------------------------------------------------------------


async def _by_name(entry: Any, context: Context) -> str | None:
    return context.registry.physical_name(entry.name)


async def _by_resource(entry: Any, context: Context) -> str | None:
    if int(entry.resource_type) != TOPIC_RESOURCE:
        return None
    return context.registry.physical_name(entry.resource_name)


async def _by_name_or_id(entry: Any, context: Context) -> str | None:
    """Return the topic of a DeleteTopics entry: a name, or from v6 on a name or an id."""
    if isinstance(entry, str):
        return entry
    if entry.name:
        return str(entry.name)
    return None if entry.topic_id is None else await context.name_of_id(entry.topic_id)


NAME_OF: Final[Mapping[int, Callable[[Any, Context], Awaitable[str | None]]]] = {
    ApiKey.CREATE_TOPICS: _by_name,
    ApiKey.DELETE_TOPICS: _by_name_or_id,
    ApiKey.DELETE_RECORDS: _by_name,
    ApiKey.ALTER_CONFIGS: _by_resource,
    ApiKey.CREATE_PARTITIONS: _by_name,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _by_resource,
}
"""Functions that return the topic of a request's entry by its own name; None: unknown."""


def _count_refused(request: Request, count: int, context: Context) -> None:
    context.stats.own_names_refused[ApiKey(request.api_key).schema_name] += count
