"""States of groups, brought in line with what Kafka's own group offset is found at.

Source: docs/decisions/005, 026, 027, 042.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from keylane.offsets.pushes import Pushes
from keylane.offsets.records.journal import StateKey, state_key
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.txn_metadata import LaneNote, apply_note, read_note
from keylane.proxy.commits.late_pushes import LatePushes
from keylane.proxy.commits.log_checks import LogChecks
from keylane.proxy.scans.known_scans import Scans
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.groups")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """Use: `adopt`, under the group's lock."""

    table_of: Callable[[str], OffsetTable]
    """The states of a group. Raises: NotCoordinator."""
    log_start: Callable[[View, int], Awaitable[int]]
    """A partition's first offset. Raises: UpstreamLost."""
    checks: LogChecks
    scans: Scans
    pushes: Pushes
    late: LatePushes
    individual_commits_max: int

    async def adopt(
        self, group: str, view: View, partition: int, found: int | None, metadata: str | None
    ) -> OffsetState:
        """The state of a group on a partition, of which Kafka has `found`; not to be changed.

        metadata: beside the offset.
        Raises: UpstreamLost, when the partition's leader has to be asked, and does not answer;
        NotCoordinator.
        """
        key = state_key(group, view.topic_id, partition)
        hash_tag = view.hash_tag(partition)
        note = read_note(metadata, view.topic_id, found, hash_tag)
        known = self._recognised(key, found, note)
        if known is not None:
            return known
        if note is not None and note.is_said:
            note = None  # it says no more of positions than the offset does
        # The base of a fresh group is the log start (docs/decisions/011).
        base = await self.log_start(view, partition) if found is None else 0
        start, is_new = found, self.table_of(group).get(key) is None
        if note is not None and is_new and not self._is_of_this_log(key):
            start = await self.checks.sure_part(key, view.topic, note)
            if start != found:  # lanes begin at the cut, also those that were said to be beyond
                note = replace(note, said=())
        table = self.table_of(group)  # the group may be another node's by now
        state = table.get(key)
        if state is None:
            state = OffsetState(
                committed=start,
                base=base,
                topic_name=view.topic,
                individual_commits_max=self.individual_commits_max,
                hash_tag=hash_tag,
            )
            state.mark_pushed(found)
        else:
            state = state.copy()
            if note is not None and note.is_push and note.position < (state.pushed or 0):
                note = None  # a tool has set offset and metadata back to what they were
            if note is None:
                how = state.reconcile(found, base=base)
                log.info(
                    "offset moved at Kafka group=%s topic=%s partition=%d offset=%s direction=%s",
                    group, view.topic, partition, found, how.value,
                )  # fmt: skip
        if note is not None:
            self._apply(key, state, note, view)
        if found is not None or table.get(key) is not None:
            table.put(key, state)
            self.late.note_loaded(key, state)
        return state

    def _recognised(
        self, key: StateKey, found: int | None, note: LaneNote | None
    ) -> OffsetState | None:
        """The state, where a push of keylane explains what was found. Raises: NotCoordinator."""
        table = self.table_of(key.group)
        state = table.get(key)
        known = table.recognise(
            key,
            found,
            self.checks.clock(),
            is_noted=note is not None and not note.is_push,
            pusher=None if note is None else note.pusher,
        )
        if known is not None and known is not state:
            # The intent may have been concluded from another log.
            self.checks.note_unsure([(key, known)])
            self.late.note_loaded(key, known)
            log.info(
                "late push found at Kafka: it was not answered, or is of a replaced node"
                " group=%s topic=%s partition=%d offset=%s stable=%d",
                key.group, known.topic_name, key.partition, found, known.stable_position,
            )  # fmt: skip
        return known

    def _apply(self, key: StateKey, state: OffsetState, note: LaneNote, view: View) -> None:
        is_news = state.pushed != note.position and not self._is_of_this_log(key)
        split = view.partition_split(key.partition)
        # News is not led on past its own epoch, which says for all of it where the log is cut.
        scan = ScanIndex(split.key_split) if is_news else self.scans.known(split)
        apply_note(state, note, scan)
        self.pushes.unsaved.add(key)
        if is_news:
            if note.seen is not None:
                self.table_of(key.group).note_epoch(key, note.seen)
            self.checks.note_unsure([(key, state)])

    def _is_of_this_log(self, key: StateKey) -> bool:
        """Return whether the push that a note stands beside was made with the log as it is now."""
        place = (key.topic_id, key.partition)
        return self.pushes.is_of_this_log(key) and not self.scans.is_unsure(place)
