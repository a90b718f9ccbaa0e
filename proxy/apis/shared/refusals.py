"""Refusals of whole requests, and of entries of them; NOT_COORDINATOR above all.

Source: docs/decisions/022.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from keylane.errors import GroupDenied, NotCoordinator
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.member_ids import is_elsewhere
from keylane.proxy.apis.shared.relay import DecodedHandler, Handler, Look, ask, relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.header import ApiKey
from keylane.wire.refused import entries_of, has_code, refuse, results_of

log = logging.getLogger("keylane.refusals")

GROUP_DENIED: Final = ErrorCode.group_authorization_failed
ASK_AGAIN: Final = ErrorCode.unstable_offset_commit
"""The only error on which librdkafka asks again for partitions. On any other one, of the whole
answer too, they wait without end (rd_kafka_assignment_apply_offsets). Meanwhile its next heartbeat
is answered NOT_COORDINATOR."""
STORED: Final = i64(-1000)
"""librdkafka's own number for the committed offset (RD_KAFKA_OFFSET_STORED)."""
GROUP_ERRORS_VERSION: Final = 8
"""First version of OffsetFetch with errors per group."""


class RefusalReason(NamedTuple):
    """The reason for not passing on an index, a topic, or a whole request."""

    code: ErrorCode
    message: str | None = None


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
                refused = refusal(request, ASK_AGAIN)
                return request.answer_entity(with_stored_offsets(request, refused))
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
    response = request.answer_type
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


def with_stored_offsets(request: Request, answer: Any) -> Any:
    """Return an OffsetFetch answer whose refused partitions librdkafka asks for in any case.

    librdkafka repeats the request. But where its partitions have changed meanwhile it takes the
    offset beside UNSTABLE_OFFSET_COMMIT for the committed one, and for -1 it starts by its reset
    policy (docs/clients.md).
    """
    has_many = request.api_version >= GROUP_ERRORS_VERSION
    groups = [_with_stored_group(each) for each in (answer.groups if has_many else (answer,))]
    return replace(answer, groups=tuple(groups)) if has_many else groups[0]


def _with_stored_group(group: Any) -> Any:
    topics = (
        replace(
            topic,
            partitions=tuple(
                replace(entry, committed_offset=STORED) if entry.error_code == ASK_AGAIN else entry
                for entry in topic.partitions
            ),
        )
        for topic in group.topics
    )
    return replace(group, topics=tuple(topics))


def refused_entry(
    request: Request, entry: Any, code: ErrorCode, message: str | None = None, **values: Any
) -> Any:
    """Return the refusal of one entry of the request, as a kio entity."""
    _, of_entry = results_of(request.answer_type)
    return refuse(of_entry, entry, code, message, **values)


def with_refused(request: Request, answer: Any, refused: Mapping[int, Any]) -> Buffers:
    """Return the answer with refusals at their positions, and other results between them.

    answer: a kio entity; None: nothing was left to ask.
    refused: results by position. Brokers need not keep the order of a request, and clients go by
    names.
    """
    field, _ = results_of(request.answer_type)
    results, rest = [], iter(() if answer is None else getattr(answer, field))
    for position in range(len(entries_of(request.decode())[1])):
        entry = refused.get(position) if position in refused else next(rest, None)
        if entry is not None:
            results.append(entry)
    return request.answer_entity(with_results(request, answer, (*results, *rest)))


def with_results(request: Request, answer: Any, results: Iterable[Any]) -> Any:
    """Return the kio answer with other results; None: the broker was not asked."""
    if answer is None:
        wanted = request.decode()
        nothing = replace(wanted, **{entries_of(wanted)[0]: ()})
        answer = refuse(request.answer_type, nothing, ErrorCode.none)
    return replace(answer, **{results_of(request.answer_type)[0]: tuple(results)})


async def pass_rest(
    request: Request,
    entries: Sequence[Any],
    refused: Mapping[int, Any],
    context: Context,
    *,
    is_judged_whole: bool = False,
) -> Buffers:
    """Ask the broker for the entries that are not refused, and answer for all.

    entries: those of the request, as the broker is to get them. refused: results by position.
    is_judged_whole: the broker is asked also when nothing is left.
    """
    wanted = request.decode()
    field, asked = entries_of(wanted)
    kept = tuple(entry for position, entry in enumerate(entries) if position not in refused)
    if kept == tuple(asked):
        return await relay(request, context)
    answer = None
    if kept or is_judged_whole:
        answer = await ask(request, replace(wanted, **{field: kept}), context)
    return with_refused(request, answer, refused)


async def judged(
    reason: RefusalReason, view: View, operation: Operation, context: Context
) -> RefusalReason:
    """Return keylane's reason, or the broker's: a client without the right learns no more."""
    code = await context.right_error(view, operation)
    return RefusalReason(ErrorCode(code)) if code else reason
