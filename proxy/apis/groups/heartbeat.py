"""Heartbeat v0-4: passed on as bytes; now and then the group's stable offsets are committed again.

Behaviour: brokers expire offsets without a commit for `offsets.retention.minutes`, unless they
know the group as subscribed to the topic. Well before that, keylane commits the stable offsets of
a running group on lanes again, exactly as the broker has them, in the name of the heartbeat's
member and over its connection. If the broker refuses that, a later heartbeat repeats it.
Heartbeats also carry a late stable offset that could not be pushed in the name of the last
committer. A node that has taken the group over loads its offsets for that, with the first
heartbeat.
If measured load is out of balance, so that the busiest member could have a tenth less, the leader
is answered REBALANCE_IN_PROGRESS: it joins again, and lanes are assigned anew. That happens
`load_rebalance_interval_s` after the last such time at the earliest, and a rule
(`rebalance_by_load`) switches it off.
Not done: groups without members, whose offsets expire as they do direct.

Source: docs/decisions/025 and 045; Kafka protocol guide, Heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import FrameInvalid, GroupDenied, KeylaneError, NotCoordinator
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy.apis.commits.entries import error_codes
from keylane.proxy.apis.commits.expired_offsets import ExpiredOffsets
from keylane.proxy.apis.commits.lane_offsets import NONE, fetch_committed, own_commit
from keylane.proxy.apis.commits.late_offsets import push_owed
from keylane.proxy.apis.commits.pushes_sent import SentPushes
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.member_ids import read_beat
from keylane.proxy.apis.shared.refusals import expect_right
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.commits.push_journal import Pushing
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.groups.group_names import Place

log = logging.getLogger("keylane.offsets")

PLACES_AT_ONCE: Final = 1_000
"""Of one request: some 50 kB."""
FINAL: Final = frozenset(
    {NONE, ErrorCode.unknown_topic_or_partition, ErrorCode.topic_authorization_failed}
)
"""Of topics that are gone, or that the member may not read: the next turn is soon enough."""
Offset = tuple[Place, int, str]
"""Place, offset and metadata, as the broker has them."""


def note_beat(request: Request, context: Context) -> None:
    """Commit the offsets of the heartbeat's group again where they are due."""
    try:
        beat = read_beat(request)
        if _is_due(beat.group, context):
            context.aside(partial(refresh_offsets, beat, context))
        push_owed(beat, context)
        if context.groups.lacks(beat.group):
            context.aside(partial(load_offsets, beat, context))
    except FrameInvalid:
        pass  # the broker refuses it


async def load_offsets(beat: Beat, context: Context) -> None:
    """Load what nothing else would: members of a quiet group send heartbeats only.

    Until then its stable offset is not led on, and not committed again.
    """
    try:
        # Any client can name a group in a heartbeat.
        await expect_right(beat.group, Operation.READ, context)
        await context.groups.ready(beat.group)
    except KeylaneError as error:
        log.debug("offsets not loaded group=%s reason=%s", beat.group, error)


def _is_due(group: str, context: Context) -> bool:
    if not context.refreshes.knows(group):
        try:
            if not context.groups.has_offsets(group):
                return False
        except NotCoordinator:
            return False  # its states are not loaded, or another node's
    return context.refreshes.is_due(group, context.clock())


async def refresh_offsets(beat: Beat, context: Context) -> None:
    """Commit again what the broker has of the group's lanes."""
    try:
        # Any client can name a group in a heartbeat.
        await expect_right(beat.group, Operation.READ, context)
        await context.caught_up()
        async with context.hold(beat.group):
            codes = await _refresh(beat, context)
    except GroupDenied:
        context.refreshes.set_due(beat.group, context.clock())
        return
    except KeylaneError as error:
        log.info("offsets not committed again group=%s reason=%s", beat.group, error)
        codes = {ErrorCode.unknown_server_error}
    if codes - FINAL:
        context.refreshes.try_again(beat.group, context.clock())


async def _refresh(beat: Beat, context: Context) -> set[ErrorCode]:
    states = {
        (state.topic_name, key.partition): (key, state)
        for key, state in context.groups.states_of(beat.group).items()
        # States of a topic that was deleted do not count for a new one of that name.
        if state.pushed is not None
        and context.registry.id_of_name(state.topic_name) == key.topic_id
    }
    codes: set[ErrorCode] = set()
    count = 0
    places = list(states)
    for start in range(0, len(places), PLACES_AT_ONCE):
        batch = places[start : start + PLACES_AT_ONCE]
        offsets = await _offsets_of(beat.group, batch, states, context)
        if not offsets:
            continue
        sent = SentPushes(beat.group, context)
        await sent.repeat({place: Pushing(*states[place], at) for place, at, _ in offsets})
        with sent.sending():
            answer = await context.ask(own_commit(beat, offsets, context))
        answered = error_codes(answer)
        sent.note_repeated(answered)
        codes.update(answered.values())
        count += list(answered.values()).count(NONE)
    context.stats.offsets_refreshed += count
    shown = ",".join(sorted(code.name for code in codes - {NONE}))
    log.debug(
        "offsets committed again group=%s offsets=%d errors=%s", beat.group, count, shown or "none"
    )
    return codes


async def _offsets_of(
    group: str,
    places: Sequence[Place],
    states: Mapping[Place, tuple[StateKey, OffsetState]],
    context: Context,
) -> list[Offset]:
    """Return offsets that are at the broker as the states have them, or that it has expired.

    An offset that was moved otherwise is left to the group's next call, which follows it.
    """
    committed, _ = await fetch_committed(group, places, context)
    expired = ExpiredOffsets(group, context)
    offsets: list[Offset] = []
    for place, (offset, metadata) in committed.items():
        key, state = states[place]
        if offset is not None:
            context.group_names.note_seen(group, place)
        else:
            offset, _ = await expired.kept_of(key, state)
            metadata = None
        if offset is not None and offset == state.pushed:
            offsets.append((place, offset, metadata or ""))
    return offsets
