"""Pushes of stable offsets: journal records before they are sent, and their outcome.

Source: docs/decisions/027, 042; Kafka 4.3, `CoordinatorOperationExceptionHelper`: a write that
timed out is answered as one that failed, and may be written.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import NotCoordinator, UpstreamLost
from keylane.offsets.txn_metadata import LaneNote, merged, said_note, write_note
from keylane.proxy.apis.commits.entries import Codes
from keylane.proxy.apis.commits.lane_offsets import BUSY, NONE, Draft
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.commits.push_journal import Pushing
from keylane.proxy.groups.group_names import Place

log = logging.getLogger("keylane.offsets")

TOO_LONG: Final = ErrorCode.offset_metadata_too_large
NOT_SAVED: Final = ErrorCode.coordinator_not_available
UNKNOWN_OUTCOMES: Final = frozenset(
    {
        None,
        ErrorCode.unknown_server_error,
        ErrorCode.request_timed_out,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
    }
)
"""After these the offset may be in the broker's log, and come into effect. None: no answer."""


class SentPushes:
    """The pushes of one request; the group's lock is held from `prepare` to `settle`."""

    def __init__(self, group: str, context: Context) -> None:
        """Nothing is sent yet."""
        self._group, self._context = group, context
        self._journal = context.groups.push_journal(group)
        self._pushes: dict[Place, Pushing] = {}
        self.may_be_sent = False
        """True: at least one may have been sent; they may go in several requests."""

    async def prepare(
        self, drafts: Sequence[Draft], *, offset: int | None = -1, is_reset: bool = False
    ) -> list[Draft]:
        """Have the journal ready; return drafts that may be pushed, with `code` set on the others.

        offset: what is pushed; -1: the stable position of each. is_reset: see `Pushing`.
        Raises: NotCoordinator.
        """
        pushes = {
            d.place: Pushing(
                d.key,
                d.state,
                d.state.stable_position if offset == -1 else offset,
                d.begun,
                is_reset,
            )
            for d in drafts
        }
        try:
            waiting = await self._journal.prepare(list(pushes.values()))
        except UpstreamLost:
            # The journal logs the reason.
            for draft in drafts:
                draft.code = NOT_SAVED
            return []
        self._pushes = {place: push for place, push in pushes.items() if push.key not in waiting}
        for draft in drafts if waiting else ():
            if draft.key in waiting:
                draft.code = BUSY
        return [draft for draft in drafts if draft.place in self._pushes]

    def give_up(self) -> None:
        """Note that what was prepared is not going to be sent."""
        self._journal.note_unsent(self._pushes.values())
        self._pushes = {}

    def note_of(self, draft: Draft) -> str:
        """The metadata that goes beside a draft's stable position."""
        groups, state = self._context.groups, draft.state
        if not groups.pushes.has_notes:
            return ""
        topic_id, position = draft.view.topic_id, state.stable_position
        pusher = self._journal.pusher
        if state.is_said:
            return said_note(topic_id, position, pusher)
        seen = groups.concluded_epoch(draft.key, state)
        said = merged((), draft.said) if groups.pushes.notes_have_lanes else ()
        note = LaneNote(position, (), seen, pusher, said=said)
        return write_note(topic_id, note, state.hash_tag)

    async def repeat(self, pushes: Mapping[Place, Pushing]) -> None:
        """Prepare offsets that Kafka's own group has already, or has lost.

        Raises: UpstreamLost, NotCoordinator: none of them may be sent.
        """
        await self._journal.prepare(list(pushes.values()))
        self._pushes = dict(pushes)

    def note_repeated(self, codes: Codes) -> None:
        """Note the broker's answer to what was repeated: no state has changed by it."""
        found = [(push, codes.get(place)) for place, push in self._pushes.items()]
        self._journal.note_taken([push for push, code in found if code == NONE])
        self._note_unanswered([push for push, code in found if code in UNKNOWN_OUTCOMES])

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send pushes inside, if the group is served here still; an error means no answer.

        Raises: NotCoordinator, before anything is sent.
        """
        self._check_ownership()
        self.may_be_sent = True
        try:
            yield
        except BaseException:
            self._note_unanswered(self._pushes.values())
            raise

    async def settle(
        self, drafts: Sequence[Draft], codes: Sequence[ErrorCode | None]
    ) -> list[Draft]:
        """Note the broker's answer; return drafts that it took. Raises: NotCoordinator.

        Where it refused the note beside the offset, the next ones are shorter, or there are none.
        """
        if TOO_LONG in codes:
            self.shorten_notes()
        taken, lost, refused = [], [], []
        for draft, code in zip(drafts, codes, strict=True):
            push = self._pushes.get(draft.place)
            if push is None:
                continue
            if code == NONE:
                draft.state.mark_pushed(push.offset)
                taken.append(draft)
            elif code in UNKNOWN_OUTCOMES:
                lost.append(push)
            else:
                refused.append(push)
        self._journal.note_taken([self._pushes[draft.place] for draft in taken])
        self._note_unanswered(lost)
        if refused:
            await self._journal.withdraw(refused)
        return taken

    def _check_ownership(self) -> None:
        """Raises: NotCoordinator; no push that was not sent holds up another one then."""
        if not self._pushes:
            return
        try:
            self._context.groups.check_ownership(self._group)
        except NotCoordinator:
            if self.may_be_sent:
                self._note_unanswered(self._pushes.values())
            else:
                self._journal.note_unsent(self._pushes.values())
            raise

    def shorten_notes(self) -> None:
        """Go on with shorter notes, or with none: the broker takes no metadata that long."""
        pushes = self._context.groups.pushes
        if not pushes.has_notes:
            return
        log.warning(
            "broker refuses the note beside an offset group=%s next_notes=%s "
            "remedy=set the brokers' offset.metadata.max.bytes back to its default, 4096",
            self._group,
            "shorter" if pushes.notes_have_lanes else "none",
        )
        if pushes.notes_have_lanes:
            pushes.notes_have_lanes = False
        else:
            pushes.has_notes = False

    def _note_unanswered(self, pushes: Collection[Pushing]) -> None:
        self._journal.note_unanswered(pushes)
        for push in pushes:
            self._context.groups.pushes.note_moved(push.key)
            self._context.groups.late.note_unanswered(push.key)
