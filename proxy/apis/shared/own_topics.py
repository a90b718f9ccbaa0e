"""Changes of keylane's own topics and transactional ids: for who may alter the cluster.

In:    requests that change a topic, or use a transactional id.  Out: the same without what is
       refused; refusals among the broker's results.
Source: docs/decisions/034; KIP-430 (authorized operations).

A right to all topics (`*`) is a common one, and was not given with keylane's own in mind: who can
write there sets lanes of any group, and settings. The broker says whether the client may ALTER
the cluster; where it has no authorizer, each client may. Requests that need that right themselves
(AlterPartitionReassignments, ElectLeaders, AlterReplicaLogDirs, CreateAcls) are the broker's to
judge. A client that goes to a broker directly meets the broker's ACLs alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32Timedelta, i64

from keylane.config.own_names import OWN_ID_START, OWN_TOPICS, is_own_id
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.relay import Handler, Look, Relays, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.registry import TopicRegistry
from keylane.wire.topic_key import NamedTopic

TOPIC_REFUSED: Final = ErrorCode.topic_authorization_failed
ID_REFUSED: Final = ErrorCode.transactional_id_authorization_failed
NOT_ATTEMPTED: Final = ErrorCode.operation_not_attempted
TOPIC_RESOURCE: Final = 2
NO_WATERMARK: Final = i64(-1)
REASON: Final = "keylane: this topic is one of its own; to change it needs ALTER on the cluster"


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one API names topics, and how it refuses one."""

    entries: Callable[[Any], tuple[str, Sequence[Any]]]
    """Field of the request, and what stands there."""
    name_of: Callable[[Any, Context], Awaitable[str | None]]
    refuse: Callable[[Any, Any], Any]
    """The response's module, and an entry: its result."""
    response: str
    results: str
    """Class of the response, and its field."""


def guarding(handler: Handler) -> Handler:
    """The handler, without the entries that are refused; their results stand at their places."""

    async def served(request: Request, context: Context) -> Buffers:
        kind = KINDS[request.api_key]
        wanted = request.decode()
        field, entries = kind.entries(wanted)
        own = {
            position
            for position, entry in enumerate(entries)
            if await kind.name_of(entry, context) in OWN_TOPICS
        }
        if not own or await context.may_alter_cluster():
            return await handler(request, context)
        context.stats.own_names_refused[_api(request)] += len(own)
        module = _module(request)
        refused = {position: kind.refuse(module, entries[position]) for position in own}
        kept = tuple(entry for position, entry in enumerate(entries) if position not in own)
        if not kept:
            answer = _answer(getattr(module, kind.response), **{kind.results: ()})
        else:
            reduced = Request(request.header, request.with_entity(replace(wanted, **{field: kept})))
            answer = request.decode_answer(b"".join(await handler(reduced, context)))
        results = _merged(len(entries), refused, getattr(answer, kind.results))
        return request.answer_entity(replace(answer, **{kind.results: results}))

    return served


def guarding_id(handler: Handler | None = None, relays: Relays | None = None) -> Look:
    """A look that refuses transactional ids of keylane's; others are handled, or relayed.

    relays: says that a request needs no handler.
    """

    async def checked(request: Request, context: Context) -> Buffers:
        wanted = request.decode()
        if await is_refused_id(_id_of(wanted), context):
            context.stats.own_names_refused[_api(request)] += 1
            return request.answer_entity(ID_REFUSALS[request.api_key](request, wanted))
        return await (handler or relay)(request, context)

    def look(request: Request, context: Context) -> Handler | None:
        if may_name_own_id(request):
            return checked
        return None if relays is not None and relays(request, context) else handler

    return look


def guarding_partitions(handler: Handler) -> Handler:
    """AddPartitionsToTxn: a broker adds none of the partitions where one is refused."""

    async def served(request: Request, context: Context) -> Buffers:
        topics = request.decode().v3_and_below_topics
        own = [topic.name in OWN_TOPICS for topic in topics]
        if not any(own) or await context.may_alter_cluster():
            return await handler(request, context)
        context.stats.own_names_refused[_api(request)] += sum(own)
        codes = [TOPIC_REFUSED if is_own else NOT_ATTEMPTED for is_own in own]
        return request.answer_entity(_added(request, topics, codes))

    return served


def names_own(topics: Iterable[NamedTopic], registry: TopicRegistry) -> bool:
    """Whether a Produce request names a topic of keylane's. Looks only: it runs per request."""
    own_ids = registry.own_topic_ids
    for topic in topics:  # noqa: SIM110 - `any` with a generator takes twice the time
        if topic.name in OWN_TOPICS or topic.topic_id in own_ids:
            return True
    return False


async def refused_topics(
    topics: Iterable[NamedTopic], context: Context
) -> frozenset[tuple[str | None, bytes | None]]:
    """Topics of a Produce request that are refused, by the name and id that it uses."""
    own = [
        (topic.name, topic.topic_id) for topic in topics if names_own((topic,), context.registry)
    ]
    if not own or await context.may_alter_cluster():
        return frozenset()
    context.stats.own_names_refused["Produce"] += len(own)
    return frozenset(own)


def may_name_own_id(request: Request) -> bool:
    """Whether a transactional id at the front of the body may be keylane's; cheap.

    Its length stands before it, in one byte or two, and four would be a message without an id.
    """
    return OWN_ID_START in bytes(request.body[:12])


async def is_refused_id(transactional_id: str | None, context: Context) -> bool:
    """Whether the client may not use this transactional id."""
    if transactional_id is None or not is_own_id(transactional_id):
        return False
    return not await context.may_alter_cluster()


def _id_of(wanted: Any) -> str | None:
    name = "v3_and_below_transactional_id"
    found: str | None = getattr(wanted, name, None) or getattr(wanted, "transactional_id", None)
    return found


def _added(request: Request, topics: Any, codes: Sequence[ErrorCode]) -> Any:
    module = _module(request)
    results = tuple(
        module.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                module.AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=code
                )
                for index in topic.partitions
            ),
        )
        for topic, code in zip(topics, codes, strict=True)
    )
    return _answer(module.AddPartitionsToTxnResponse, results_by_topic_v3_and_below=results)


def _refuse_producer(request: Request, _wanted: Any) -> Any:
    response = _module(request).InitProducerIdResponse
    return _answer(response, error_code=ID_REFUSED, producer_id=i64(-1), producer_epoch=i16(-1))


def _refuse_partitions(request: Request, wanted: Any) -> Any:
    topics = wanted.v3_and_below_topics
    return _added(request, topics, [ID_REFUSED] * len(topics))


def _refuse_offsets(request: Request, _wanted: Any) -> Any:
    return _answer(_module(request).AddOffsetsToTxnResponse, error_code=ID_REFUSED)


def _refuse_end(request: Request, _wanted: Any) -> Any:
    return _answer(_module(request).EndTxnResponse, error_code=ID_REFUSED)


def _refuse_commit(request: Request, wanted: Any) -> Any:
    module = _module(request)
    topics = tuple(
        module.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=tuple(
                module.TxnOffsetCommitResponsePartition(
                    partition_index=entry.partition_index, error_code=ID_REFUSED
                )
                for entry in topic.partitions
            ),
        )
        for topic in wanted.topics
    )
    return _answer(module.TxnOffsetCommitResponse, topics=topics)


ID_REFUSALS: Final[Mapping[int, Callable[[Request, Any], Any]]] = {
    22: _refuse_producer,
    24: _refuse_partitions,
    25: _refuse_offsets,
    26: _refuse_end,
    28: _refuse_commit,
}


# -- topics, by API ----------------------------------------------------------------------


async def _by_name(entry: Any, context: Context) -> str | None:
    return context.registry.physical_name(entry.name)


async def _by_resource(entry: Any, context: Context) -> str | None:
    if int(entry.resource_type) != TOPIC_RESOURCE:
        return None
    return context.registry.physical_name(entry.resource_name)


async def _by_name_or_id(entry: Any, context: Context) -> str | None:
    """Of DeleteTopics: a name, or from v6 on a name or an id."""
    if isinstance(entry, str):
        return entry
    if entry.name:
        return str(entry.name)
    return None if entry.topic_id is None else await context.name_of_id(entry.topic_id)


def _refuse_deletion(module: Any, entry: Any) -> Any:
    name, topic_id = (entry, None) if isinstance(entry, str) else (entry.name, entry.topic_id)
    return _result(module.DeletableTopicResult, name=name, topic_id=topic_id)


def _refuse_records(module: Any, entry: Any) -> Any:
    partitions = tuple(
        module.DeleteRecordsPartitionResult(
            partition_index=each.partition_index,
            low_watermark=NO_WATERMARK,
            error_code=TOPIC_REFUSED,
        )
        for each in entry.partitions
    )
    return module.DeleteRecordsTopicResult(name=entry.name, partitions=partitions)


def _refuse_config(module: Any, entry: Any) -> Any:
    return _result(
        module.AlterConfigsResourceResponse,
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
    )


def _refuse_creation(module: Any, entry: Any) -> Any:
    return _result(
        module.CreatableTopicResult,
        name=entry.name,
        topic_id=None,
        topic_config_error_code=i16(0),
        configs=(),
    )


def _refuse_growth(module: Any, entry: Any) -> Any:
    return _result(module.CreatePartitionsTopicResult, name=entry.name)


def _topics(wanted: Any) -> tuple[str, Sequence[Any]]:
    return "topics", wanted.topics


def _deleted(wanted: Any) -> tuple[str, Sequence[Any]]:
    field = "topics" if hasattr(wanted, "topics") else "topic_names"
    return field, getattr(wanted, field)


def _resources(wanted: Any) -> tuple[str, Sequence[Any]]:
    return "resources", wanted.resources


API_NAMES: Final = {
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
    33: "AlterConfigs",
    37: "CreatePartitions",
    44: "IncrementalAlterConfigs",
}
KINDS: Final[Mapping[int, _Kind]] = {
    19: _Kind(_topics, _by_name, _refuse_creation, "CreateTopicsResponse", "topics"),
    20: _Kind(_deleted, _by_name_or_id, _refuse_deletion, "DeleteTopicsResponse", "responses"),
    21: _Kind(_topics, _by_name, _refuse_records, "DeleteRecordsResponse", "topics"),
    33: _Kind(_resources, _by_resource, _refuse_config, "AlterConfigsResponse", "responses"),
    37: _Kind(_topics, _by_name, _refuse_growth, "CreatePartitionsResponse", "results"),
    44: _Kind(
        _resources, _by_resource, _refuse_config, "IncrementalAlterConfigsResponse", "responses"
    ),
}


def _api(request: Request) -> str:
    return API_NAMES[request.api_key]


def _result(of_entry: Any, **values: Any) -> Any:
    """A kio result that is a refusal; fields that its version lacks are left out."""
    known = {each.name for each in fields(of_entry)}
    values |= {"error_code": TOPIC_REFUSED, "error_message": REASON}
    return of_entry(**{key: value for key, value in values.items() if key in known})


def _merged(count: int, refused: Mapping[int, Any], answered: Sequence[Any]) -> tuple[Any, ...]:
    """Refusals at the positions of the request, and the other results between them."""
    results, rest = [], iter(answered)
    for position in range(count):
        entry = refused.get(position) if position in refused else next(rest, None)
        if entry is not None:
            results.append(entry)
    return (*results, *rest)


def _answer(response: Any, **values: Any) -> Any:
    if any(each.name == "throttle_time" for each in fields(response)):
        values["throttle_time"] = i32Timedelta.parse(timedelta(0))
    return response(**values)


def _module(request: Request) -> Any:
    return load_payload_module(request.api_key, request.api_version, EntityType.response)
