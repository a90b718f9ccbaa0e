"""States against the logs that are there now: cut where their log is another one.

Source: docs/decisions/026; KIP-320.

A log may be cut while no keylane runs, or while it is not read. So a state that was loaded, whose
partition has a new leader, or that is asked for while it has no reader, is unchecked until that
leader has said where the epoch ends that the state was concluded in. What was concluded beyond is
cut; what members said stays.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from keylane.errors import UpstreamLost
from keylane.offsets.lineage import FRESH_S, NO_EPOCH, EpochEnd, EpochStart, Lineages, PartitionKey
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.txn_metadata import LaneNote
from keylane.proxy.commits.log_ends import Question

log = logging.getLogger("keylane.offsets")

RETRY_S: Final = 5.0
"""Time for which a leader that did not answer is not asked again for a group."""

AskEnds = Callable[[Iterable[Question]], Awaitable[dict[Question, EpochEnd]]]


class LogChecks:
    """States that have to be looked at before they are served; used by the event loop alone.

    Invariant: neither dict has an empty value.
    """

    def __init__(self, ask: AskEnds, lineages: Lineages, *, clock: Callable[[], float]) -> None:
        self._ask, self._lineages, self.clock = ask, lineages, clock
        self._unchecked: dict[str, set[StateKey]] = {}
        self._cuts: dict[str, dict[StateKey, int]] = {}
        self._retry_s: dict[str, float] = {}
        self._led: dict[PartitionKey, int] = {}
        self._asked_s: OrderedDict[str, float] = OrderedDict()
        """By group, when it was asked where it stands; the earliest first."""

    def note_unsure(self, states: Iterable[tuple[StateKey, OffsetState]]) -> None:
        """Leaders are to be asked before these are served: they come from the journal, say.

        Those without a conclusion are left out: they say only what members said.
        """
        for key, state in states:
            if state.concluded_end:
                self._unchecked.setdefault(key.group, set()).add(key)
                self._retry_s.pop(key.group, None)

    def note_leader(self, place: PartitionKey, leader_epoch: int) -> None:
        """A partition has a later leader than was known; `note_led` comes before it counts."""
        self._led[place] = leader_epoch

    def note_led(self, states: Iterable[tuple[StateKey, OffsetState]]) -> None:
        """Before a group is served: states of partitions that have new leaders are unsure.

        A reader may have compared some since. One pass does for any number of new leaders.
        states: of all groups that are loaded.
        """
        if not self._led:
            return
        led, self._led = self._led, {}
        places = {
            place for place, epoch in led.items() if self._lineages.of(place).leader_epoch < epoch
        }
        self.note_unsure(
            item for item in states if places and (item[0].topic_id, item[0].partition) in places
        )

    def note_asked(self, group: str, table: OffsetTable) -> None:
        """A client asks where a group stands: states of logs without a reader are unsure.

        No metadata need have named a new leader yet. Once in FRESH_S for a group.
        """
        now_s = self.clock()
        while self._asked_s and next(iter(self._asked_s.values())) < now_s - FRESH_S:
            self._asked_s.popitem(last=False)
        # Any client can name a group: those without a state are not remembered.
        if group in self._asked_s or not table.has_group(group):
            return
        self._asked_s[group] = now_s
        states = table.of_group(group).items()
        self.note_unsure(item for item in states if not self._is_read(_place(item[0]), now_s))

    def _is_read(self, place: PartitionKey, now_s: float) -> bool:
        lineage = self._lineages.find(place)
        return lineage is not None and now_s - lineage.known_s <= FRESH_S

    def note_cut(self, keys: Iterable[StateKey], end: int) -> None:
        """The log of these states is another one from `end` on."""
        for key in keys:
            cuts = self._cuts.setdefault(key.group, {})
            cuts[key] = min(end, cuts.get(key, end))

    def forget(self, key: StateKey) -> None:
        """The state was deleted, or is another node's now."""
        for kept in (self._unchecked, self._cuts):
            of_group = kept.get(key.group)
            if of_group is not None:
                of_group.discard(key) if isinstance(of_group, set) else of_group.pop(key, None)
                if not of_group:
                    del kept[key.group]
        if key.group not in self._unchecked:
            self._retry_s.pop(key.group, None)

    def forget_where(self, is_lost: Callable[[str], bool]) -> None:
        """Forget all states of some groups."""
        for kept in (self._unchecked, self._cuts, self._retry_s):
            for group in [group for group in kept if is_lost(group)]:
                del kept[group]

    def waits(self, group: str) -> bool:
        """Return whether `repair` has something to do."""
        if group in self._cuts:
            return True
        return group in self._unchecked and self._retry_s.get(group, 0.0) <= self.clock()

    def is_unchecked(self, key: StateKey) -> bool:
        """Return whether the state may stand beyond its log: only what members said is sure."""
        return key in self._unchecked.get(key.group, ())

    async def repair(self, group: str, table: OffsetTable) -> None:
        """Check and cut the states of a group; its lock is held. Raises nothing."""
        unchecked = self._unchecked.get(group, set())
        known = [key for key in unchecked if table.get(key) is not None]
        known.sort(key=_place)  # leaders are asked in the same order in each run
        questions = {key: _question(key, table) for key in known}
        found = await self._ask(questions.values()) if questions else {}
        for key, question in questions.items():
            if question in found and key in unchecked:
                self._settle(key, found[question], table)
                unchecked.discard(key)
        unchecked.difference_update([key for key in unchecked if table.get(key) is None])
        if unchecked:
            self._retry_s[group] = self.clock() + RETRY_S
        elif self._unchecked.get(group) is unchecked:
            del self._unchecked[group]
            self._retry_s.pop(group, None)
        for key, end in self._cuts.pop(group, {}).items():
            _cut(key, end, table)

    async def sure_part(self, key: StateKey, topic: str, note: LaneNote) -> int:
        """Return as much of a note's position as is of the leader's log: all that shows of a state.

        The journal may lack what was pushed, and what members said of it is not known then.
        Raises: UpstreamLost, when the leader does not say.
        """
        if note.seen is None:
            return note.position
        question = Question(topic, key.topic_id, key.partition, note.seen.epoch)
        found = (await self._ask([question])).get(question)
        if found is None:
            raise UpstreamLost(
                f"topic {topic} partition {key.partition}: end of epoch {note.seen.epoch} not known"
            )
        end = _end_of(found, note.seen)
        if end is None or end >= note.position:
            return note.position
        log.warning(
            "offset is of another log: lanes begin where it was cut group=%s topic=%s partition=%d"
            " offset=%d cut=%d",
            key.group, topic, key.partition, note.position, end,
        )  # fmt: skip
        return end

    def _settle(self, key: StateKey, found: EpochEnd, table: OffsetTable) -> None:
        seen = table.epoch_of(key)
        end = _end_of(found, seen)
        if end is None:
            return
        _cut(key, end, table)
        state = table.get(key)
        if seen is not None and state is not None:
            # From now on a reader that meets a new leader compares this as well.
            lineage = self._lineages.of((key.topic_id, key.partition))
            lineage.note(min(end, state.concluded_end), ((seen.epoch, seen.start),))


def _end_of(found: EpochEnd, seen: EpochStart | None) -> int | None:
    """Return where a log ends to be the one in which `seen` was; None: it has no epochs."""
    if found.epoch == NO_EPOCH:
        return None
    if seen is not None and found.epoch < seen.epoch:
        return min(found.end, seen.start)
    return found.end


def _place(key: StateKey) -> PartitionKey:
    return key.topic_id, key.partition


def _question(key: StateKey, table: OffsetTable) -> Question:
    state, seen = table.get(key), table.epoch_of(key)
    assert state is not None, "the caller has looked"
    epoch = NO_EPOCH if seen is None else seen.epoch
    return Question(state.topic_name, key.topic_id, key.partition, epoch)


def _cut(key: StateKey, end: int, table: OffsetTable) -> None:
    state = table.get(key)
    if state is None:
        return
    draft = state.copy()
    before = draft.stable_position
    if draft.cut(end):
        table.put(key, draft)
        log.warning(
            "positions are of another log: going back group=%s topic=%s partition=%d cut=%d"
            " stable_before=%d stable=%d",
            key.group, draft.topic_name, key.partition, end, before, draft.stable_position,
        )  # fmt: skip
