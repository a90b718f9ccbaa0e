"""Offsets that brokers have expired under a running group: kept, and soon pushed again.

Behaviour: a missing offset is a deletion, and lanes start from nothing, unless the group has had
members since before this process looked at it, and the offset was missing from the start. Then it
has expired: its members joined through a keylane that did not show the broker the topic behind a
lane name, so the broker does not count them as subscribers.
Not done: nothing.

Source: docs/decisions/025; KIP-211; OffsetMetadataManager.cleanupExpiredOffsets.
"""

from __future__ import annotations

import logging

from kio.schema.errors import ErrorCode

from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import CONSUMER, GroupState, ask_group_state
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.offsets")


class ExpiredOffsets:
    """Missing offsets of one group, judged for one request; the group's lock is held."""

    def __init__(self, group: str, context: Context) -> None:
        self._group, self._context = group, context
        self._found: GroupState | None = None

    async def offset_of(
        self, view: View, partition: int, found: int | None
    ) -> tuple[int | None, ErrorCode]:
        """Return what the broker has, else `kept_of`.

        The group's next heartbeat puts a kept offset back, unless a commit does.
        """
        if found is not None:
            self._context.group_names.note_seen(self._group, (view.topic, partition))
            return found, ErrorCode.none
        state = self._context.groups.state_of(self._group, view, partition)
        kept, code = await self.kept_of(StateKey(self._group, view.topic_id, partition), state)
        if kept is not None:
            self._context.refreshes.set_due(self._group, self._context.clock())
        return kept, code

    async def kept_of(
        self, key: StateKey, state: OffsetState | None
    ) -> tuple[int | None, ErrorCode]:
        """Return the offset to go on from as if the broker had it; None: it is gone.

        A code other than 0: it is not known now, for that reason.
        """
        if state is None or state.pushed is None:
            return None, ErrorCode.none
        if self._context.groups.push_journal(self._group).is_deleting(key):
            return None, ErrorCode.none
        place = state.topic_name, key.partition
        if not self._context.group_names.may_have_expired(self._group, place):
            return None, ErrorCode.none
        if self._found is None:
            self._found = await ask_group_state(self._group, self._context)
        if self._found.error_code != ErrorCode.none:
            return None, self._found.error_code
        if not self._found.has_members or self._found.protocol_type != CONSUMER:
            return None, ErrorCode.none
        self._context.stats.offsets_kept += 1
        log.warning(
            "offset of a running group has expired at the broker: kept until its next heartbeat or "
            "commit puts it back group=%s topic=%s partition=%d offset=%d",
            self._group, *place, state.pushed,
        )  # fmt: skip
        return state.pushed, ErrorCode.none
