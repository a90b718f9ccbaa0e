"""Commits of members that go back: seeks on purpose, and repeats that a client causes.

librdkafka 2.16 hands out records of an earlier turn after some re-assignments, and commits them. A
member of it that commits below what it was answered of a lane, and has fetched nothing below that
since the lane came to it, is answered well, and the lane stays where it is (decision 031).
All other steps back are done: what a client seeks is what it gets.
Not done: several nodes (the client's fetches pass other ones), transactions.

Source: docs/clients.md, docs/decisions/031.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from keylane.assignor.model import Lane
from keylane.assignor.protocol import read_assignment
from keylane.errors import FrameInvalid
from keylane.proxy.apis.commits.lane_offsets import Draft
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.member_ids import read_group
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.offsets")

LINES_MAX: Final = 16
"""Of one commit; further lanes of it are counted, and logged in one line."""


def note_given(request: Request, frame: Frame, context: Context) -> Buffers:
    """Take note of the lanes in the answer to a SyncGroup, which passes as it came."""
    if context.is_librdkafka and context.placement.is_alone:
        try:
            answer = request.decode_answer(frame)
            if answer.error_code == 0:
                lanes = read_assignment(answer.assignment).lanes
                client_id = request.header.client_id or ""
                context.member_lanes.note_given(read_group(request), client_id, lanes)
        except FrameInvalid as error:
            # The member may well read it. Of lanes that are not known all commits count.
            context.member_lanes.clear()
            log.warning(
                "SyncGroup not read: every commit counts session_id=%s reason=%s",
                context.session_id,
                error,
            )
    return (frame,)


def note_held(group: str, client_id: str, lanes: frozenset[Lane], context: Context) -> None:
    """Take note of the lanes of a KIP-848 member, with each of its heartbeats."""
    if context.is_librdkafka and context.placement.is_alone:
        context.member_lanes.note_held(group, client_id, lanes)


def note_answered(group: str, view: View, lanes: Iterable[Any], context: Context) -> None:
    """Take note of committed offsets that the client is answered: kio entries of a topic."""
    for entry in lanes:
        offset = int(entry.committed_offset)
        if offset >= 0 and entry.error_code == 0:
            context.member_lanes.note_answered(
                group, (view.name, int(entry.partition_index)), offset
            )


def note_steps_back(group: str, member_id: str, taken: Iterable[Draft], context: Context) -> None:
    """Members have committed lanes lower than they stood."""
    drafts = list(taken)
    done = [(draft.view.name, *step) for draft in drafts for step in draft.steps_back]
    if done:
        context.stats.stepped_back(group, len(done))
        _log(group, member_id, done, "the lane is read again from there")
    kept = [(draft.view.name, *step) for draft in drafts for step in draft.left_over]
    if kept:
        context.stats.stayed(group, len(kept))
        _log(group, member_id, kept, "it is of an earlier turn, and the lane stays")


def _log(group: str, member_id: str, steps: list[tuple[str, int, int, int]], what: str) -> None:
    for topic, index, before, after in steps[:LINES_MAX]:
        log.warning(
            "lower offset committed: %s"
            " group=%s topic=%s lane=%d from=%d to=%d member_id=%s",
            what, group, topic, index, before, after, member_id,
        )  # fmt: skip
    if len(steps) > LINES_MAX:
        log.warning(
            "further lower offsets committed: %s group=%s further_lanes=%d member_id=%s",
            what, group, len(steps) - LINES_MAX, member_id,
        )  # fmt: skip
