"""CreateTopics v2-7, DeleteTopics v1-6, CreatePartitions v0-3: topics that come, go and grow.

Behaviour: a count of partitions always means the topic's own partitions. A new topic is not given
a name that would mean lanes of another one: INVALID_TOPIC_EXCEPTION. A topic is deleted under its
own name, or by its own id; a lane name, or its id, is refused with POLICY_VIOLATION, since the
topic is also that of all who use other names. A topic whose lanes the client sees is given no
more partitions: POLICY_VIOLATION, since the client counts lanes, and lanes stay on the partitions
that they have (decision 006). All refusals say why. Among many nodes replicas that the client
chose are brokers by the id of any pair.
Not done: nothing.

In:    requests and answers.  Out: the same, with refusals among the results.
Source: KIP-4 (error messages), KIP-195 (CreatePartitions), KIP-516 (topic ids).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from keylane.proxy.apis.shared.context import Context, Operation, Request
from keylane.proxy.apis.shared.lane_wishes import (
    REFUSED,
    Refusal,
    Target,
    ask,
    find_target,
    lanes_text,
    log,
)
from keylane.proxy.apis.shared.places import real_ids
from keylane.proxy.apis.shared.relay import relay
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View

MESSAGE_VERSION: Final = 5
BY_ID_VERSION: Final = 6
"""Of DeleteTopics; before version 5 the reason is logged."""
INVALID_TOPIC: Final = ErrorCode.invalid_topic_exception


async def handle_create_topics(request: Request, context: Context) -> Buffers:
    """Refuse lane names; pass the rest, with replicas by the brokers' own ids."""
    wanted = request.decode()
    refusals: dict[int, Refusal] = {}
    kept: list[Any] = []
    for position, topic in enumerate(wanted.topics):
        physical = context.registry.physical_name(topic.name)
        if physical != topic.name:
            reason = (
                f"keylane: {topic.name} means lanes of the topic {physical} (`lane_name_pattern`), "
                "which would hide a topic of that name; choose another one"
            )
            refusals[position] = Refusal(INVALID_TOPIC, reason)
        else:
            kept.append(_with_real_ids(topic, context))
    if not refusals and tuple(kept) == tuple(wanted.topics):
        return await relay(request, context)
    module = _module(request)
    answer = None
    if kept:
        answer = await ask(request, replace(wanted, topics=tuple(kept)), context)
    refused = {
        position: _result(
            module.CreatableTopicResult,
            refusal,
            name=wanted.topics[position].name,
            topic_id=None,
            topic_config_error_code=0,
            configs=(),
        )
        for position, refusal in refusals.items()
    }
    answered = () if answer is None else answer.topics
    results = _merged(len(wanted.topics), refused, answered)
    if answer is None:
        answer = _empty(module.CreateTopicsResponse, "topics")
    return request.answer_entity(replace(answer, topics=results))


async def handle_delete_topics(request: Request, context: Context) -> Buffers:
    """Refuse lane names and their ids; pass the rest."""
    wanted = request.decode()
    is_by_id = request.api_version >= BY_ID_VERSION
    field = "topics" if is_by_id else "topic_names"
    entries = getattr(wanted, field)
    refused: dict[int, Any] = {}
    for position, entry in enumerate(entries):
        name, topic_id = (entry.name, entry.topic_id) if is_by_id else (entry, None)
        found = await _lane_target(name, topic_id, context)
        if found is not None:
            refused[position] = await _refused_deletion(request, found, topic_id, context)
    if not refused:
        return await relay(request, context)
    answer = None
    kept = tuple(entry for position, entry in enumerate(entries) if position not in refused)
    if kept:
        answer = await ask(request, replace(wanted, **{field: kept}), context)
    results = _merged(len(entries), refused, () if answer is None else answer.responses)
    if answer is None:
        answer = _empty(_module(request).DeleteTopicsResponse, "responses")
    return request.answer_entity(replace(answer, responses=results))


async def _lane_target(
    name: str | None, topic_id: uuid.UUID | None, context: Context
) -> Target | None:
    """What a lane name, or its id, stands for; None where a topic is meant itself."""
    if name:
        is_lanes = context.registry.physical_name(name) != name
        return await find_target(name, context) if is_lanes else None
    view = context.registry.view_by_id(topic_id) if topic_id is not None else None
    return Target(view.name, view) if view is not None and view.is_renamed else None


async def _refused_deletion(
    request: Request, target: Target, topic_id: uuid.UUID | None, context: Context
) -> Any:
    view, refusal = target.view, target.refusal
    name: str | None = target.name
    if view is not None:
        code = await context.right_error(view, Operation.DELETE)
        refusal = Refusal(ErrorCode(code), None) if code else Refusal(REFUSED, _reason(view))
        if code and topic_id is not None:
            name = None  # the client need not be allowed to know it
    assert refusal is not None, "a lane name has a view, or a reason why not"
    of_topic = _module(request).DeletableTopicResult
    if refusal.message is not None and request.api_version < MESSAGE_VERSION:
        log.warning(
            "DeleteTopics refused topic=%s session_id=%s reason=%s",
            target.name, context.session_id, refusal.message,
        )  # fmt: skip
    return _result(of_topic, refusal, name=name, topic_id=topic_id)


def _reason(view: View) -> str:
    return (
        f"keylane: {view.name} means lanes of the topic {view.topic}, which others use under "
        f"other names; to delete it and its records, name {view.topic} itself"
    )


async def handle_create_partitions(request: Request, context: Context) -> Buffers:
    """Refuse topics that the client sees as lanes; pass the rest, with brokers' own ids."""
    wanted = request.decode()
    module = _module(request)
    refused: dict[int, Any] = {}
    kept: list[Any] = []
    for position, topic in enumerate(wanted.topics):
        refusal = await _refused_growth(topic, context)
        if refusal is None:
            kept.append(_with_real_ids(topic, context))
        else:
            of_topic = module.CreatePartitionsTopicResult
            refused[position] = _result(of_topic, refusal, name=topic.name)
    if not refused and tuple(kept) == tuple(wanted.topics):
        return await relay(request, context)
    answer = None
    if kept:
        answer = await ask(request, replace(wanted, topics=tuple(kept)), context)
    results = _merged(len(wanted.topics), refused, () if answer is None else answer.results)
    if answer is None:
        answer = _empty(module.CreatePartitionsResponse, "results")
    return request.answer_entity(replace(answer, results=results))


async def _refused_growth(topic: Any, context: Context) -> Refusal | None:
    target = await find_target(topic.name, context)
    view = target.view
    if view is None:
        return target.refusal
    code = await context.right_error(view, Operation.ALTER)
    if code:
        return Refusal(ErrorCode(code), None)
    return Refusal(
        REFUSED,
        f"{lanes_text(view)}, {view.layout.index_count} in all: a count of {topic.count} is one of "
        "lanes, and lanes do not read partitions that are added; to add some, stop "
        f"the groups, ask a broker's own address for more than {view.layout.partition_count} "
        "partitions, and start keylane with the topic in `accept_layout`",
    )


def _with_real_ids(topic: Any, context: Context) -> Any:
    """A kio topic entry with the replicas that the client chose by the brokers' own ids."""
    if context.placement.is_alone or not topic.assignments:
        return topic
    assignments = tuple(
        replace(entry, broker_ids=real_ids(entry.broker_ids, context))
        for entry in topic.assignments
    )
    return replace(topic, assignments=assignments)


def _merged(count: int, refused: Mapping[int, Any], answered: Sequence[Any]) -> tuple[Any, ...]:
    """Refusals at the positions of the request, and the broker's results between them.

    Brokers need not keep the order of a request, and clients go by names.
    """
    results, rest = [], iter(answered)
    for position in range(count):
        entry = refused.get(position) if position in refused else next(rest, None)
        if entry is not None:
            results.append(entry)
    return (*results, *rest)


def _result(of_topic: Any, refusal: Refusal, **values: Any) -> Any:
    """A kio result that is a refusal; fields that its version lacks are left out."""
    known = {each.name: each for each in fields(of_topic)}
    values |= {"error_code": refusal.code, "error_message": refusal.message}
    return of_topic(**{key: value for key, value in values.items() if key in known})


def _empty(response: Any, field: str) -> Any:
    """A kio answer without results, for a request of which nothing is left to ask."""
    values: dict[str, Any] = {field: ()}
    if any(each.name == "throttle_time" for each in fields(response)):
        values["throttle_time"] = timedelta(0)
    return response(**values)


def _module(request: Request) -> Any:
    return load_payload_module(request.api_key, request.api_version, EntityType.response)
