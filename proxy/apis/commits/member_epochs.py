"""Epochs of KIP-848 members in calls about offsets of lanes.

Behaviour: upstream a member owns no partition of a lane topic, so brokers take its commits under
its newest epoch only. Each join and each end in the group moves that epoch on, while commits are on
their way. keylane applies the rule that KIP-1251 has for partitions to lanes: an older epoch is
good for lanes that the member has had without a break since then, and the newest one is sent in its
place. Reads are sent with the newest epoch.

Source: KIP-848, KIP-1251; Kafka 4.3, `ConsumerGroup.validateOffsetCommit`, `validateOffsetFetch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from keylane.proxy.apis.commits.entries import Entry, topic_key
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.topics.view import View


def epoch_for(
    group: str,
    member_id: str,
    epoch: int,
    entries: Iterable[Entry],
    topics: Sequence[Any],
    context: Context,
) -> int:
    """Return the epoch to send with a commit; the member's own where no other is as good.

    topics: kio topic entries of the request.
    """
    known = context.consumer_groups.find(group)
    member = None if known is None else known.find(member_id)
    if known is None or member is None:
        return epoch
    lanes = []
    for entry in entries:
        if entry.view is not None:
            lanes.append((entry.view.name, entry.index))
            continue
        named = topic_key(topics[entry.topic_number])
        topic_id = context.registry.id_of_name(named) if isinstance(named, str) else named
        since = None if topic_id is None else member.plain_since.get((topic_id, entry.index))
        if since is None or since > epoch:
            return epoch  # of a partition the broker judges an older epoch by itself
    return known.newest_epoch(member.identity, epoch, lanes)


def read_epoch_for(group: str, member_id: str | None, epoch: int, context: Context) -> int:
    """Return the epoch to send with an OffsetFetch."""
    known = context.consumer_groups.find(group)
    member = None if known is None or not member_id else known.find(member_id)
    if known is None or member is None:
        return epoch
    return known.newest_epoch(member.identity, epoch, None)


def is_of_another(
    group: str, member_id: str | None, view: View, index: int, context: Context
) -> bool:
    """Return whether a member may be about to read a lane that is in the hands of another one.

    It is about to where it is to get the lane, or is not known here. Any other member only looks.
    """
    known = context.consumer_groups.find(group)
    if known is None or not member_id:
        return False
    lane = view.name, index
    holder, member = known.holder_of(lane), known.find(member_id)
    if holder is None or member is None:
        return holder is not None
    return holder != member.identity and lane in known.target.get(member.identity, ())
