"""ShareGroupHeartbeat v1, offsets of share groups v0-1 (KIP-932): whole partitions.

Behaviour: a share group has the whole partitions of a topic. Its assignments, fetches and offsets
name partitions, also if the topic's own name means lanes. Its start offsets are set there by the
partitions' numbers. A tool that reads Metadata names all lanes: those beyond the partitions are
answered as their partition if the request sets it to the same offset, and else refused with
POLICY_VIOLATION and a reason.
On a lane name a share group would wait for records without end. So a lane name is refused in
heartbeats with INVALID_REQUEST and in offset calls with POLICY_VIOLATION, each with a message.
Brokers do not know its topic id, and answer that.
A group with a rule (`share_groups`) is refused with INVALID_REQUEST and a message where the brokers
lack what order by key takes. Before its offsets are changed, keylane's sessions of it are closed,
unless it has members, which brokers refuse.
Not done: a lane name as a topic of a share group.

Source: KIP-932; docs/decisions/028, 048.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import (
    REFUSED,
    TopicTarget,
    find_target,
    lanes_text,
)
from keylane.proxy.apis.shared.refusals import RefusalReason, judged, refusal
from keylane.proxy.apis.shared.relay import ask, relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.refused import refuse

LANE_NAME: Final = (
    "keylane: {name} means lanes of the topic {topic}, which share groups do not know: they have "
    "its whole partitions; name {topic} itself"
)


async def handle_share_group_heartbeat(request: Request, context: Context) -> Buffers:
    """Refuse lane names, relay the rest."""
    wanted = request.decode()
    names = (str(name) for name in wanted.subscribed_topic_names or ())
    refused = next((name for name in names if _is_lane_name(name, context)), None)
    text = None if refused is None else _lane_name_text(refused, context)
    group = str(wanted.group_id)
    if text is None and wanted.member_epoch == 0 and context.ordered.has_group(group):
        text = await context.ordered.lacking(group)
    if text is None or wanted.member_epoch < 0:
        return await relay(request, context)
    member = {"member_id": wanted.member_id, "member_epoch": wanted.member_epoch}
    return request.answer_entity(refusal(request, ErrorCode.invalid_request, text, **member))


def _is_lane_name(name: str, context: Context) -> bool:
    return context.registry.physical_name(name) != name


def _lane_name_text(name: str, context: Context) -> str:
    return LANE_NAME.format(name=name, topic=context.registry.physical_name(name))


async def handle_alter_share_offsets(request: Request, context: Context) -> Buffers:
    """Set start offsets of partitions; the broker is asked always, since it judges the right."""
    wanted = request.decode()
    await context.ordered.close_idle(str(wanted.group_id))
    targets = [await find_target(topic.topic_name, context) for topic in wanted.topics]
    if all(target.is_plain for target in targets):
        return await relay(request, context)
    refusals: list[dict[int, RefusalReason]] = []
    kept: list[Any] = []
    for target, topic in zip(targets, wanted.topics, strict=True):
        offsets = {int(e.partition_index): int(e.start_offset) for e in topic.partitions}
        refused = await _refused_offsets(target, offsets, context)
        refusals.append(refused)
        entries = [
            e for e in topic.partitions if _is_asked(target, int(e.partition_index), refused)
        ]
        if entries:
            kept.append(replace(topic, partitions=tuple(entries)))
    answer = await ask(request, replace(wanted, topics=tuple(kept)), context)
    if answer.error_code != ErrorCode.none:
        return request.answer_entity(answer)
    return request.answer_entity(_build_altered(request, wanted, targets, refusals, answer))


def _is_asked(target: TopicTarget, index: int, refused: Mapping[int, RefusalReason]) -> bool:
    """Return whether an entry is neither refused nor a repetition of its partition."""
    view = target.view
    return index not in refused and (view is None or index < view.layout.partition_count)


async def _refused_offsets(
    target: TopicTarget, offsets: Mapping[int, int], context: Context
) -> dict[int, RefusalReason]:
    """Return by index the reasons why a start offset is not set."""
    view = target.view
    if view is None:
        return {} if target.refusal is None else dict.fromkeys(offsets, target.refusal)
    refused: dict[int, RefusalReason] = {}
    if view.is_renamed:
        text = LANE_NAME.format(name=view.name, topic=view.topic)
        refused = dict.fromkeys(offsets, RefusalReason(REFUSED, text))
    else:
        refused = {i: reason for i in offsets if (reason := beyond(view, i, offsets))}
    code = await context.right_error(view, Operation.READ) if refused else 0
    return dict.fromkeys(refused, RefusalReason(ErrorCode(code))) if code else refused


def beyond(view: View, index: int, offsets: Mapping[int, int]) -> RefusalReason | None:
    """Return the reason to refuse a lane beyond the partitions; None: it is its partition."""
    count = view.layout.partition_count
    if 0 <= index < count:
        return None
    if view.error_of(index):
        return RefusalReason(
            ErrorCode.unknown_topic_or_partition, f"{lanes_text(view)}; there is no lane {index}"
        )
    if offsets.get(view.partition_of(index)) == offsets[index]:
        return None
    return RefusalReason(
        REFUSED,
        f"{lanes_text(view)}, but a share group has the whole partitions 0 to {count - 1}: "
        f"name partition {view.partition_of(index)} in the place of lane {index}",
    )


def _build_altered(
    request: Request,
    wanted: Any,
    targets: list[TopicTarget],
    refusals: list[dict[int, RefusalReason]],
    answer: Any,
) -> Any:
    module = request.answer_module
    answered = {str(topic.topic_name): topic for topic in answer.responses}
    responses = []
    for topic, target, refused in zip(wanted.topics, targets, refusals, strict=True):
        known = answered.get(str(topic.topic_name))
        found = {int(e.partition_index): e for e in (known.partitions if known else ())}
        entries = []
        for entry in topic.partitions:
            index = int(entry.partition_index)
            if index in refused:
                of_entry = module.AlterShareGroupOffsetsResponsePartition
                entries.append(refuse(of_entry, index, *refused[index]))
                continue
            partition = index if target.view is None else target.view.partition_of(index)
            if partition in found:
                entries.append(replace(found[partition], partition_index=i32(index)))
        responses.append(
            module.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=known.topic_id if known else _id_of(target),
                partitions=tuple(entries),
            )
        )
    return replace(answer, responses=tuple(responses))


async def handle_describe_share_offsets(request: Request, context: Context) -> Buffers:
    """Refuse lane names; the rest are partitions in the request and the answer."""
    wanted = request.decode()
    refused: dict[tuple[int, int], TopicTarget] = {}
    groups = []
    for number, group in enumerate(wanted.groups):
        for place, topic in enumerate(group.topics or ()):
            if _is_lane_name(topic.topic_name, context):
                refused[number, place] = await find_target(topic.topic_name, context)
        if group.topics is not None:
            left = (topic for p, topic in enumerate(group.topics) if (number, p) not in refused)
            group = replace(group, topics=tuple(left))
        groups.append(group)
    if not refused:
        return await relay(request, context)
    answer = await ask(request, replace(wanted, groups=tuple(groups)), context)
    found = {str(group.group_id): group for group in answer.groups}
    of_topic = request.answer_module.DescribeShareGroupOffsetsResponseTopic
    shown = []
    for number, group in enumerate(wanted.groups):
        described = found.get(str(group.group_id))
        if described is not None and described.error_code == ErrorCode.none:
            lanes = [
                await _refuse_topic(
                    of_topic, topic, refused[number, place], Operation.DESCRIBE, context
                )
                for place, topic in enumerate(group.topics or ())
                if (number, place) in refused
            ]
            described = replace(described, topics=(*described.topics, *lanes))
        if described is not None:
            shown.append(described)
    return request.answer_entity(replace(answer, groups=tuple(shown)))


async def _refuse_topic(
    of_topic: Any, topic: Any, target: TopicTarget, operation: Operation, context: Context
) -> Any:
    """Return the answer entry of a lane name; topic: a kio entry of the request, or the name."""
    view, reason = target.view, target.refusal
    if view is not None:
        text = LANE_NAME.format(name=view.name, topic=view.topic)
        reason = await judged(RefusalReason(REFUSED, text), view, operation, context)
    assert reason is not None, "a lane name has a view, or a reason why not"
    return refuse(of_topic, topic, *reason, topic_id=_id_of(target))


async def handle_delete_share_offsets(request: Request, context: Context) -> Buffers:
    """Refuse lane names; all offsets of a topic are those of its partitions."""
    wanted = request.decode()
    await context.ordered.close_idle(str(wanted.group_id))
    names = [str(topic.topic_name) for topic in wanted.topics]
    refused = {name for name in names if _is_lane_name(name, context)}
    if not refused:
        return await relay(request, context)
    kept = tuple(topic for topic in wanted.topics if str(topic.topic_name) not in refused)
    answer = await ask(request, replace(wanted, topics=kept), context)
    if answer.error_code != ErrorCode.none:
        return request.answer_entity(answer)
    of_topic = request.answer_module.DeleteShareGroupOffsetsResponseTopic
    lanes = [
        await _refuse_topic(
            of_topic, name, await find_target(name, context), Operation.READ, context
        )
        for name in dict.fromkeys(name for name in names if name in refused)
    ]
    return request.answer_entity(replace(answer, responses=(*answer.responses, *lanes)))


def _id_of(target: TopicTarget) -> Any:
    return None if target.view is None else target.view.view_id
