"""The group and the member in JoinGroup and SyncGroup requests.

Source: Kafka protocol guide, JoinGroup, SyncGroup; KIP-62, KIP-345.
"""

from __future__ import annotations

from keylane.errors import FrameInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.commits.refreshes import Beat
from keylane.wire.primitives import Reader


def read_group(request: Request) -> str:
    """Return the group of a JoinGroup, SyncGroup or Heartbeat. Raises: FrameInvalid."""
    return Reader(request.body, flexible=request.is_flexible).string()


def read_beat(request: Request) -> Beat:
    """Return the member of a SyncGroup or Heartbeat. Raises: FrameInvalid."""
    reader = Reader(request.body, flexible=request.is_flexible)
    group, generation_id, member_id = reader.string(), reader.int32(), reader.string()
    instance_id = reader.nullable_string() if request.api_version >= 3 else None
    return Beat(group, generation_id, member_id, instance_id)


def is_elsewhere(request: Request, context: Context) -> bool:
    """Return whether another node serves the group that a JoinGroup, SyncGroup or Heartbeat names.

    The broker would accept the request here as well. But a member that joins here asks for its
    offsets here next, and librdkafka accepts only a repetition for an answer to that. So the member
    is sent to the other node before, by a code that every client knows.
    """
    if context.placement.is_alone:
        return False
    try:
        number = context.placement.node_of_group(read_group(request))
    except FrameInvalid:
        return False  # the broker refuses it
    return number is not None and number != context.placement.number


def note_joining(request: Request, context: Context) -> None:
    """Note a member that begins a round."""
    try:
        group = read_group(request)
    except FrameInvalid:
        return  # the broker refuses it
    context.stats.rebalances += context.generations.rounds.joins(group, context.clock())


def note_syncing(request: Request, context: Context) -> None:
    """Note the time in which a member had nothing to read."""
    try:
        group = read_group(request)
    except FrameInvalid:
        return  # the broker refuses it
    seconds = context.generations.rounds.syncs(group, context.clock())
    if seconds is not None:
        context.stats.rebalance_seconds.observe(seconds)
