"""SyncGroup v0-5 of Kafka Streams: no subtopology reads topics that place a key differently.

Behaviour: Streams reads the same index of all topics of a subtopology in one task, if their
partition counts are equal. Two topics may be joined if a key has the same index in each: plain
topics and lanes of murmur2 with Kafka's default partitioner, or lanes of one layout. keylane reads
the tasks in the leader's plan, and in the assignment that any other member is answered. If a
subtopology has topics of two kinds, the plan is not passed on, the member is refused and leaves
the group. A group rule with `streams_mixed: allow` lets it in. Streams keeps its own plan under any
rule: its assignments carry more than partitions.
The refusal has the reason in place of the protocol type, which Java's consumer logs as an error
before it raises InconsistentGroupProtocolException. Versions below 5 have no such field.
A member whose leader is at a broker's own address is refused as well: its tasks are of partitions.
Everything else passes as bytes.
Not done: a check of the partitioners of plain topics, which Streams believes in as well.

Source: docs/decisions/046; StreamsPartitionAssignor.populateActiveTaskAndPartitionsLists;
AbstractCoordinator.SyncGroupResponseHandler; KIP-559 (the protocol in SyncGroup).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from keylane.assignor.protocol import read_assignment
from keylane.assignor.streams import Subtopology, read_subtopologies
from keylane.config.topic_rules import LEGAL_TOPIC
from keylane.errors import FrameInvalid
from keylane.proxy.apis.groups.follower_sync import is_led_directly
from keylane.proxy.apis.groups.mixed_groups import log_streams
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.leaving import leave_group
from keylane.proxy.apis.shared.member_ids import note_syncing
from keylane.proxy.apis.shared.refusals import refusal
from keylane.proxy.apis.shared.relay import Handler, forward, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.groups.assignors import STREAMS
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.runtime.event_log import Kind, Severity
from keylane.proxy.topics.view import View
from keylane.wire.group_syncs import (
    PROTOCOL_VERSION,
    SyncRequest,
    read_sync_answer,
)

log = logging.getLogger("keylane.groups")

NOT_READ: Final = Subtopology("unknown", -1)
"""Stands for the tasks of an assignment that cannot be read."""
NEWER: Final = ", or upgrade keylane, which cannot read the assignments of this version of Streams"
ALLOW: Final = "allow"
TopicsRead = Mapping[Subtopology, frozenset[str]]
"""Topics that are read together, by their subtopology."""


class Placing(NamedTuple):
    """The rule that gives keys their index in a topic: equal rules, equal indexes."""

    kind: tuple[object, ...]
    text: str


class Mix(NamedTuple):
    """Two topics of one subtopology that place a key differently."""

    subtopology: Subtopology
    lanes: str
    """The topic to be changed."""
    other: str
    placings: tuple[Placing, Placing]
    """Of `lanes` and of `other`."""

    def __str__(self) -> str:
        """Return the reason to refuse, and the cure."""
        mine, others = self.placings
        return (
            f"subtopology {self.place} reads {self.lanes} ({mine.text}) and {self.other} "
            f"({others.text}), in which a key has different partition numbers; {self.cure}"
        )

    @property
    def place(self) -> str:
        """Return the subtopology for people."""
        return "unknown" if self.subtopology == NOT_READ else str(self.subtopology)

    @property
    def cure(self) -> str:
        """Return what to do."""
        newer = NEWER if self.subtopology == NOT_READ else ""
        return (
            f"set `hash: murmur2` for the lanes of {self.lanes}, or repartition() it before the "
            "join; topics that are only merged may stay, with `streams_mixed: allow` for the group"
            f"{newer}"
        )


@dataclass(frozen=True, slots=True)
class StreamsSync:
    """A SyncGroup of a member of Kafka Streams."""

    sync: SyncRequest
    is_judged: bool
    """False: a rule lets the group mix topics."""

    @property
    def group(self) -> str:
        """Return the group, which is the application's id."""
        return self.sync.group_id


def look_streams_sync(request: Request, sync: SyncRequest, context: Context) -> Handler | None:
    """Return the handler of a member of Streams; None: it is none."""
    if request.api_version >= PROTOCOL_VERSION:
        is_streams = sync.protocol_name == STREAMS
    else:
        is_streams = sync.group_id in context.streams
    if not is_streams:
        return None
    rule = context.config.group_rule(sync.group_id)
    asked = StreamsSync(sync, is_judged=rule is None or rule.streams_mixed != ALLOW)
    return partial(handle_streams_sync, asked=asked)


async def handle_streams_sync(request: Request, context: Context, asked: StreamsSync) -> Buffers:
    """Judge the leader's plan, or what another member is answered; pass both on unchanged."""
    note_syncing(request, context)
    if not asked.is_judged:
        return await relay(request, context)
    mix = await _find_mix(asked.group, asked.sync.assignments, context)
    if mix is not None:
        return _refuse(request, asked, mix, context)
    frame = await forward(request, context)
    if asked.sync.assignments:
        context.streams.note_let_in(asked.group)
        return (frame,)
    try:
        given = read_sync_answer(request.answer_body(frame), request.api_version)
    except FrameInvalid as error:
        # The client may be able to read it.
        log.warning(
            "SyncGroup not read: relayed session_id=%s reason=%s", context.session_id, error
        )
        return (frame,)
    if given and await is_led_directly(request, context):
        return _refuse_direct(request, asked, context)
    mix = await _find_mix(asked.group, (given,), context)
    return (frame,) if mix is None else _refuse(request, asked, mix, context)


async def _find_mix(group: str, assignments: Sequence[memoryview], context: Context) -> Mix | None:
    """Return the first mix in assignments of members. Raises: UpstreamLost."""
    if not assignments:
        return None
    reads = await context.in_thread(read_reads, assignments, context.group_names.names_of(group))
    placings = {}
    for name in sorted(frozenset[str]().union(*reads.values())):
        placing = await _find_placing(name, context)
        if placing is not None:
            placings[name] = placing
    return next(find_mixes(reads, placings), None)


def read_reads(assignments: Iterable[memoryview], names: frozenset[str]) -> TopicsRead:
    """Return the topics that are read together, over all members.

    An assignment whose tasks cannot be read counts as one subtopology, and one that cannot be read
    at all as one with all of the group's topics, `names`.
    """
    reads: dict[Subtopology, frozenset[str]] = {}
    for data in assignments:
        try:
            assignment = read_assignment(data)
        except FrameInvalid:
            reads[NOT_READ] = names | reads.get(NOT_READ, names)
            continue
        try:
            found = read_subtopologies(assignment)
        except FrameInvalid:
            found = {NOT_READ: frozenset(topic for topic, _ in assignment.lanes)}
        for key, topics in found.items():
            reads[key] = topics | reads.get(key, topics)
    return reads


async def _find_placing(name: str, context: Context) -> Placing | None:
    """Return a topic's placing; None: it cannot be read, or be a topic. Raises: UpstreamLost."""
    if not LEGAL_TOPIC.fullmatch(name):
        return None
    view = await context.find_view(name)
    if view is not None:
        return placing_of(view)
    return PLAIN if context.registry.rule_of(name) is None else None


def placing_of(view: View) -> Placing:
    """Return the placing of keys in a topic with lanes."""
    layout = view.layout
    counts = f"lanes: {layout.partition_count} x {layout.lane_count}"
    if layout.hash == "murmur2" or layout.lane_count == 1:
        return PLAIN._replace(text=f"{counts}, as partitions")
    cuts = layout.fingerprint
    text = f"{counts}, {layout.hash}" + (", cut by a plan" if cuts else "")
    return Placing((layout.hash, layout.partition_count, layout.lane_count, cuts), text)


PLAIN: Final = Placing((), "partitions")
"""Kafka's default partitioner, as far as known."""


def find_mixes(reads: TopicsRead, placings: Mapping[str, Placing]) -> Iterator[Mix]:
    """Yield two topics of each subtopology that has more than one placing."""
    for subtopology, names in sorted(reads.items()):
        known = sorted(name for name in names if name in placings)
        lanes = next((name for name in known if placings[name].kind != PLAIN.kind), None)
        if lanes is None:
            continue
        kind = placings[lanes].kind
        other = next((name for name in known if placings[name].kind != kind), None)
        if other is not None:
            yield Mix(subtopology, lanes, other, (placings[lanes], placings[other]))


def _refuse_direct(request: Request, asked: StreamsSync, context: Context) -> Buffers:
    """Refuse a member whose leader knows partitions, and no lanes; have it leave."""
    sync = asked.sync
    context.stats.joins_refused += 1
    log_streams(asked.group, sync.member_id)
    context.aside(partial(leave_group, asked.group, sync.member_id, sync.instance_id, context))
    return request.answer_entity(refusal(request, ErrorCode.inconsistent_group_protocol))


def _refuse(request: Request, asked: StreamsSync, mix: Mix, context: Context) -> Buffers:
    """Answer with the reason, and have the member leave: the others are not kept waiting."""
    group, sync, reason = asked.group, asked.sync, str(mix)
    context.stats.streams_refused += 1
    if context.streams.note_refused(group, reason):
        mine, others = mix.placings
        log.error(
            "streams refused: a join would miss records group=%s member_id=%s subtopology=%s "
            "topic=%s placing=%r other=%s other_placing=%r remedy=%s",
            group, sync.member_id, mix.place, mix.lanes, mine.text, mix.other, others.text,
            mix.cure,
        )  # fmt: skip
        context.event_log.note(
            Kind.REFUSED,
            f"Group {group} of Kafka Streams is refused: {reason}.",
            severity=Severity.ERROR,
            group=group,
        )
    context.aside(partial(leave_group, group, sync.member_id, sync.instance_id, context))
    answer = refusal(request, ErrorCode.inconsistent_group_protocol)
    if request.api_version >= PROTOCOL_VERSION:
        # Java's consumer logs it, and raises the same error as by the code: see the docstring.
        text = f"none: keylane refuses group {group}, since {reason};"
        answer = replace(answer, error_code=ErrorCode.none, protocol_type=text)
    return request.answer_entity(answer)
