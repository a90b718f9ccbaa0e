"""NOT_COORDINATOR, or another code of a whole group, where each of the group calls says it.

In:    a request.  Out: the answer that makes its client look for the coordinator anew.
Source: Kafka message schemas of OffsetCommit, OffsetFetch, TxnOffsetCommit, DeleteGroups and
OffsetDelete; docs/decisions/022.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta, i64

from keylane.errors import GroupDenied, NotCoordinator
from keylane.proxy.apis.shared.context import Context, Operation
from keylane.proxy.apis.shared.member_ids import is_elsewhere
from keylane.proxy.apis.shared.relay import Handler, Look
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers

log = logging.getLogger("keylane.refusals")

NOT_COORDINATOR: Final = ErrorCode.not_coordinator
GROUP_DENIED: Final = ErrorCode.group_authorization_failed
NO_OFFSET: Final = i64(-1)
TOP_LEVEL_VERSION: Final = 2
"""OffsetFetch before this version has errors per partition only."""
NULLABLE_PROTOCOL_VERSION: Final = 7
"""Of JoinGroup."""
MANY_GROUPS_VERSION: Final = 8
"""OffsetFetch from here on has errors per group."""

OFFSET_FETCH: Final = 9
ASK_AGAIN: Final = ErrorCode.unstable_offset_commit
"""librdkafka asks again for partitions with this error only. With any other one, of the whole
answer too, they wait for ever (rd_kafka_assignment_apply_offsets); meanwhile its next heartbeat
tells it that the coordinator is elsewhere."""


def refusing(handler: Handler) -> Handler:
    """The handler, with a refusal when it finds that the group is not ours, or not the client's."""

    async def served(request: Request, context: Context) -> Buffers:
        try:
            return await handler(request, context)
        except GroupDenied:
            return request.answer_entity(refusal(request, GROUP_DENIED))
        except NotCoordinator as error:
            log.info(
                "group is not served session_id=%s api_key=%d reason=%s",
                context.session_id,
                request.api_key,
                error,
            )
            if request.api_key == OFFSET_FETCH and context.is_librdkafka:
                return request.answer_entity(_offset_fetch(request, ASK_AGAIN))
            return request.answer_entity(refusal(request, ErrorCode(error.error_code)))

    return served


def at_coordinator(look: Look | None = None) -> Look:
    """As `look`, or a relay, where this node serves the group; elsewhere a refusal."""

    def looked(request: Request, context: Context) -> Handler | None:
        if is_elsewhere(request, context):
            return _refuse
        return None if look is None else look(request, context)

    return looked


async def _refuse(request: Request, _context: Context) -> Buffers:
    return request.answer_entity(refusal(request))


async def expect_right(group: str, operation: Operation, context: Context) -> None:
    """Before a group's lock is taken, or anything is noted of it. Raises: GroupDenied."""
    if await context.group_error(group, operation):
        raise GroupDenied(f"the client may not {operation.name} the group {group}")


def refusal(request: Request, code: ErrorCode = NOT_COORDINATOR) -> Any:
    """The whole request refused, as a kio entity."""
    return REFUSALS[request.api_key](request, code)


def refuse_groups(
    request: Request, names: Collection[str], code: ErrorCode = NOT_COORDINATOR
) -> Any:
    """A DeleteGroups answer that refuses these groups of the request."""
    module = _module(request)
    results = tuple(
        module.DeletableGroupResult(group_id=name, error_code=code)
        for name in request.decode().groups_names
        if str(name) in names
    )
    return _answer(module.DeleteGroupsResponse, results=results)


def _delete_groups(request: Request, code: ErrorCode) -> Any:
    names = {str(name) for name in request.decode().groups_names}
    return refuse_groups(request, names, code)


def _offset_delete(request: Request, code: ErrorCode) -> Any:
    response = _module(request).OffsetDeleteResponse
    return _answer(response, error_code=code, topics=())


def _offset_commit(request: Request, code: ErrorCode) -> Any:
    module = _module(request)
    return _per_partition(
        request,
        module.OffsetCommitResponse,
        module.OffsetCommitResponseTopic,
        module.OffsetCommitResponsePartition,
        code,
    )


def _txn_offset_commit(request: Request, code: ErrorCode) -> Any:
    module = _module(request)
    return _per_partition(
        request,
        module.TxnOffsetCommitResponse,
        module.TxnOffsetCommitResponseTopic,
        module.TxnOffsetCommitResponsePartition,
        code,
    )


def _per_partition(
    request: Request, response: Any, of_topic: Any, of_partition: Any, code: ErrorCode
) -> Any:
    topics = tuple(
        of_topic(
            partitions=tuple(
                of_partition(partition_index=entry.partition_index, error_code=code)
                for entry in topic.partitions
            ),
            **_name(topic),
        )
        for topic in request.decode().topics
    )
    return _answer(response, topics=topics)


def refuse_join(request: Request, code: ErrorCode, member_id: str) -> Any:
    """A JoinGroup refused, as a kio entity."""
    response = _module(request).JoinGroupResponse
    return _answer(
        response,
        error_code=code,
        protocol_name=None if request.api_version >= NULLABLE_PROTOCOL_VERSION else "",
        leader="",
        member_id=member_id,
        members=(),
    )


def refuse_sync(request: Request, code: ErrorCode) -> Any:
    """A SyncGroup refused, as a kio entity."""
    response = _module(request).SyncGroupResponse
    return _answer(response, error_code=code, assignment=b"")


def _join_group(request: Request, code: ErrorCode) -> Any:
    return refuse_join(request, code, request.decode().member_id)


def _sync_group(request: Request, code: ErrorCode) -> Any:
    return refuse_sync(request, code)


def _heartbeat(request: Request, code: ErrorCode) -> Any:
    return _answer(_module(request).HeartbeatResponse, error_code=code)


def _offset_fetch(request: Request, code: ErrorCode) -> Any:
    module, wanted = _module(request), request.decode()
    whole = code if code != ASK_AGAIN else ErrorCode.none
    if request.api_version >= MANY_GROUPS_VERSION:
        names = (module.OffsetFetchResponseTopics, module.OffsetFetchResponsePartitions)
        groups = tuple(
            module.OffsetFetchResponseGroup(
                group_id=group.group_id,
                # With an error of the whole group brokers name no partitions.
                topics=() if whole == code else refused_topics(group.topics, *names, code),
                error_code=whole,
            )
            for group in wanted.groups
        )
        return _answer(module.OffsetFetchResponse, groups=groups)
    topics = refused_offsets(wanted, module, code)
    top_level = {"error_code": whole} if request.api_version >= TOP_LEVEL_VERSION else {}
    return _answer(module.OffsetFetchResponse, topics=topics, **top_level)


def refused_offsets(wanted: Any, module: Any, code: ErrorCode) -> tuple[Any, ...]:
    """The partitions that an OffsetFetch before v8 asks for, each with an error.

    A top-level error alone would do, as brokers answer it. But aiokafka looks at partitions only:
    for those that are not named it starts where it starts without a commit, and the whole topic is
    read again.
    """
    of_topic, of_partition = module.OffsetFetchResponseTopic, module.OffsetFetchResponsePartition
    return refused_topics(wanted.topics, of_topic, of_partition, code)


def refused_topics(
    topics: Any, of_topic: Any, of_partition: Any, code: ErrorCode
) -> tuple[Any, ...]:
    """Answer entries of OffsetFetch for its topic entries, with one error for all partitions."""
    return tuple(
        of_topic(
            partitions=tuple(
                of_partition(
                    partition_index=index,
                    committed_offset=NO_OFFSET,
                    metadata="",
                    error_code=code,
                )
                for index in topic.partition_indexes
            ),
            **_name(topic),
        )
        for topic in topics or ()
    )


def _name(topic: Any) -> dict[str, Any]:
    """By id where the version has it, else by name."""
    return {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"name": topic.name}


def _answer(response: Any, **values: Any) -> Any:
    if any(field.name == "throttle_time" for field in fields(response)):
        values["throttle_time"] = i32Timedelta.parse(timedelta(0))
    return response(**values)


def _module(request: Request) -> Any:
    return load_payload_module(request.api_key, request.api_version, EntityType.response)


REFUSALS: Final[Mapping[int, Callable[[Request, ErrorCode], Any]]] = {
    8: _offset_commit,
    9: _offset_fetch,
    11: _join_group,
    12: _heartbeat,
    14: _sync_group,
    28: _txn_offset_commit,
    42: _delete_groups,
    47: _offset_delete,
}
