"""NOT_COORDINATOR where each of the offset calls says it, for groups that another node serves.

In:    a request.  Out: the answer that makes its client look for the coordinator anew.
Next:  the routing table wraps handlers in `refusing`.
Pure:  no I/O, no clock.
Source: Kafka message schemas of OffsetCommit, OffsetFetch, TxnOffsetCommit, DeleteGroups and
OffsetDelete; docs/decisions/022.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta, i64

from keylane.errors import NotCoordinator
from keylane.proxy.apis.context import Context, Request
from keylane.proxy.connection import Buffers

log = logging.getLogger("keylane.refusals")

NOT_COORDINATOR: Final = ErrorCode.not_coordinator
NO_OFFSET: Final = i64(-1)
TOP_LEVEL_VERSION: Final = 2
"""OffsetFetch before this version has errors per partition only."""
MANY_GROUPS_VERSION: Final = 8
"""OffsetFetch from here on has errors per group."""

Handler = Callable[[Request, Context], Awaitable[Buffers]]


def refusing(handler: Handler) -> Handler:
    """The handler, with an answer of NOT_COORDINATOR when it finds that the group is not ours."""

    async def served(request: Request, context: Context) -> Buffers:
        try:
            return await handler(request, context)
        except NotCoordinator as error:
            log.info(
                "group is not served session_id=%s api_key=%d reason=%s",
                context.session_id,
                request.api_key,
                error,
            )
            return request.answer_entity(refusal(request))

    return served


def refusal(request: Request) -> Any:
    """The whole request refused, as a kio entity."""
    return REFUSALS[request.api_key](request)


def refuse_groups(request: Request, names: Collection[str]) -> Any:
    """A DeleteGroups answer that refuses these groups of the request."""
    module = _module(request)
    results = tuple(
        module.DeletableGroupResult(group_id=name, error_code=NOT_COORDINATOR)
        for name in request.decode().groups_names
        if str(name) in names
    )
    return _answer(module.DeleteGroupsResponse, results=results)


def _delete_groups(request: Request) -> Any:
    return refuse_groups(request, {str(name) for name in request.decode().groups_names})


def _offset_delete(request: Request) -> Any:
    response = _module(request).OffsetDeleteResponse
    return _answer(response, error_code=NOT_COORDINATOR, topics=())


def _offset_commit(request: Request) -> Any:
    module = _module(request)
    return _per_partition(
        request,
        module.OffsetCommitResponse,
        module.OffsetCommitResponseTopic,
        module.OffsetCommitResponsePartition,
    )


def _txn_offset_commit(request: Request) -> Any:
    module = _module(request)
    return _per_partition(
        request,
        module.TxnOffsetCommitResponse,
        module.TxnOffsetCommitResponseTopic,
        module.TxnOffsetCommitResponsePartition,
    )


def _per_partition(request: Request, response: Any, of_topic: Any, of_partition: Any) -> Any:
    topics = tuple(
        of_topic(
            partitions=tuple(
                of_partition(partition_index=entry.partition_index, error_code=NOT_COORDINATOR)
                for entry in topic.partitions
            ),
            **_name(topic),
        )
        for topic in request.decode().topics
    )
    return _answer(response, topics=topics)


def _offset_fetch(request: Request) -> Any:
    module, wanted = _module(request), request.decode()
    if request.api_version >= MANY_GROUPS_VERSION:
        groups = tuple(
            module.OffsetFetchResponseGroup(
                group_id=group.group_id, topics=(), error_code=NOT_COORDINATOR
            )
            for group in wanted.groups
        )
        return _answer(module.OffsetFetchResponse, groups=groups)
    topics = refused_offsets(wanted, module, NOT_COORDINATOR)
    top_level = {"error_code": NOT_COORDINATOR} if request.api_version >= TOP_LEVEL_VERSION else {}
    return _answer(module.OffsetFetchResponse, topics=topics, **top_level)


def refused_offsets(wanted: Any, module: Any, code: ErrorCode) -> tuple[Any, ...]:
    """The partitions that an OffsetFetch before v8 asks for, each with an error.

    A top-level error alone would do, as brokers answer it. But aiokafka looks at partitions only:
    for those that are not named it starts where it starts without a commit, and the whole topic is
    read again.
    """
    return tuple(
        module.OffsetFetchResponseTopic(
            partitions=tuple(
                module.OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=NO_OFFSET,
                    metadata="",
                    error_code=code,
                )
                for index in topic.partition_indexes
            ),
            **_name(topic),
        )
        for topic in wanted.topics or ()
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


REFUSALS: Final[Mapping[int, Callable[[Request], Any]]] = {
    8: _offset_commit,
    9: _offset_fetch,
    28: _txn_offset_commit,
    42: _delete_groups,
    47: _offset_delete,
}
