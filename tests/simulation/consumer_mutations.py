"""Mistakes about lanes of consumer groups (KIP-848).

Source: docs/guarantees.md and docs/decisions/043 name the promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from keylane.proxy.apis.groups.consumer import heartbeat as consumer_heartbeat
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import Lanes
from tests.simulation.mutation import Mutation, patch


def _give_at_once(self: ConsumerGroup, identity: str, now_s: float) -> Lanes:
    """A member is given its target, whatever other members hold."""
    member = self.members[identity]
    if not self.is_still(now_s) and identity in self.target:
        self._set(member, owned=member.owned, given=self.target[identity], epoch=member.epoch)
    return member.given


def _write_after_the_answer() -> Sequence[Any]:
    """Lanes in hand are not in the journal when the member learns of them."""

    async def save(*_: Any) -> None:
        pass

    return [mock.patch.object(consumer_heartbeat, "_save", save)]


async def _end_the_refused(group: ConsumerGroup, wanted: Any, *_: Any) -> None:
    """Lanes of a member whose heartbeat is refused are free, for whatever reason it is."""
    member = group.find(str(wanted.member_id))
    if member is not None:
        group.end(member.identity)


CONSUMERS: Sequence[Mutation] = (
    Mutation(
        "a lane of a consumer group is given before it is released",
        "a lane is at one member of a consumer group",
        patch(ConsumerGroup, "give", _give_at_once),
    ),
    Mutation(
        "lanes change hands at once after a start",
        "nothing changes hands after a restart",
        patch(ConsumerGroup, "is_still", lambda *_: False),
    ),
    Mutation(
        "held lanes are not in the journal before the answer",
        "a lane is at one member over restarts",
        _write_after_the_answer,
    ),
    Mutation(
        "a refused heartbeat ends its member",
        "the broker's word alone frees lanes",
        patch(consumer_heartbeat, "_note_refused", _end_the_refused),
    ),
    Mutation(
        "older epochs are sent as they are",
        "commits of consumer groups count while members come and go",
        patch(ConsumerGroup, "newest_epoch", lambda _self, _identity, epoch, _lanes: epoch),
    ),
    Mutation(
        "members that have ended are not looked for",
        "every lane of a consumer group is read",
        patch(ConsumerGroup, "note_listed", lambda *_: []),
    ),
)
