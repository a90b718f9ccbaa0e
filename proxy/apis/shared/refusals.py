"""Refusals of whole requests, and of entries of them; NOT_COORDINATOR above all.

Source: docs/decisions/022.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from keylane.errors import GroupDenied, NotCoordinator
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.member_ids import is_elsewhere
from keylane.proxy.apis.shared.relay import DecodedHandler, Handler, Look
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.net.response_order import Buffers
from keylane.wire.header import ApiKey
from keylane.wire.refused import entries_of, has_code, refuse, results_of

log = logging.getLogger("keylane.refusals")

GROUP_DENIED: Final = ErrorCode.group_authorization_failed
ASK_AGAIN: Final = ErrorCode.unstable_offset_commit
"""The only error on which librdkafka asks again for partitions. On any other one, of the whole
answer too, they wait without end (rd_kafka_assignment_apply_offsets). Meanwhile its next heartbeat
is answered NOT_COORDINATOR."""
GROUP_ERRORS_VERSION: Final = 8
"""First version of OffsetFetch with errors per group."""


class RefusalReason(NamedTuple):
    """The reason for not passing on an index, a topic, or a whole request."""

    code: ErrorCode
    message: str | None


def refusing(handler: DecodedHandler) -> Handler:
    """Return the handler, with a refusal for groups of other nodes or of other clients."""

    async def served(request: Request, context: Context) -> Buffers:
        try:
            return await handler(request, request.decode(), context)
        except GroupDenied:
            return request.answer_entity(refusal(request, GROUP_DENIED))
        except NotCoordinator as error:
            log.info(
                "group refused session_id=%s api_key=%d reason=%s",
                context.session_id,
                request.api_key,
                error,
            )
            code = ErrorCode(error.error_code)
            if request.api_key == ApiKey.OFFSET_FETCH and context.is_librdkafka:
                code = ASK_AGAIN
            return request.answer_entity(refusal(request, code))

    return served


def at_coordinator(look: Look | None = None) -> Look:
    """Return a look that refuses groups of other nodes; others go to `look`, or are relayed."""

    def looked(request: Request, context: Context) -> Handler | None:
        if is_elsewhere(request, context):
            return _refuse
        return None if look is None else look(request, context)

    return looked


async def _refuse(request: Request, _context: Context) -> Buffers:
    return request.answer_entity(refusal(request))


async def expect_right(group: str, operation: Operation, context: Context) -> None:
    """Check the right before a group's lock or its state is used. Raises: GroupDenied."""
    if await context.group_error(group, operation):
        raise GroupDenied(f"the client may not {operation.name} the group {group}")


def refusal(
    request: Request,
    code: ErrorCode = ErrorCode.not_coordinator,
    message: str | None = None,
    **values: Any,
) -> Any:
    """Return the refusal of the whole request, as a kio entity; values: see `refuse`."""
    response = load_response_schema(request.api_key, request.api_version)
    whole = None
    if code is ASK_AGAIN and request.api_key == ApiKey.OFFSET_FETCH:
        whole = ErrorCode.none
    elif request.api_key == ApiKey.OFFSET_FETCH and request.api_version < GROUP_ERRORS_VERSION:
        # A top-level error is enough for brokers. But aiokafka looks at partitions only: it starts
        # those that are not named as if they had no commit.
        whole = code
    if request.api_key == ApiKey.JOIN_GROUP and not values:
        values = {"member_id": request.decode().member_id}
    is_short = has_code(response) and whole is None
    asked = None if is_short else request.decode()
    return refuse(response, asked, code, message, whole=whole, **values)


def refused_entry(
    request: Request, entry: Any, code: ErrorCode, message: str | None = None, **values: Any
) -> Any:
    """Return the refusal of one entry of the request, as a kio entity."""
    _, of_entry = results_of(load_response_schema(request.api_key, request.api_version))
    return refuse(of_entry, entry, code, message, **values)


def with_refused(request: Request, answer: Any, refused: Mapping[int, Any]) -> Buffers:
    """Return the answer with refusals at their positions, and other results between them.

    answer: a kio entity; None: nothing was left to ask.
    refused: results by position. Brokers need not keep the order of a request, and clients go by
    names.
    """
    wanted = request.decode()
    response = load_response_schema(request.api_key, request.api_version)
    asked, entries = entries_of(wanted)
    if answer is None:
        answer = refuse(response, replace(wanted, **{asked: ()}), ErrorCode.none)
    field, _ = results_of(response)
    results, rest = [], iter(getattr(answer, field))
    for position in range(len(entries)):
        entry = refused.get(position) if position in refused else next(rest, None)
        if entry is not None:
            results.append(entry)
    return request.answer_entity(replace(answer, **{field: (*results, *rest)}))


def refuse_groups(
    request: Request, names: Collection[str], code: ErrorCode = ErrorCode.not_coordinator
) -> Any:
    """Return a DeleteGroups answer that refuses these groups of the request."""
    wanted = request.decode()
    kept = tuple(name for name in wanted.groups_names if str(name) in names)
    response = load_response_schema(request.api_key, request.api_version)
    return refuse(response, replace(wanted, groups_names=kept), code)


def refused_offsets(wanted: Any, module: Any, code: ErrorCode) -> tuple[Any, ...]:
    """Return the partitions of an OffsetFetch before v8, each with an error."""
    return refused_topics(wanted.topics, module.OffsetFetchResponseTopic, None, code)


def refused_topics(
    topics: Any, of_topic: Any, _of_partition: Any, code: ErrorCode
) -> tuple[Any, ...]:
    """Return answer entries of OffsetFetch for its topics, with one error for all partitions."""
    return tuple(refuse(of_topic, topic, code) for topic in topics or ())
