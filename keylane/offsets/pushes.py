"""Knowledge of Kafka's own group offsets that a transaction may be about to change.

Source: KIP-447 (`require_stable`): the broker says whether a partition has a pending offset.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from keylane.offsets.records.journal import StateKey
from keylane.offsets.txn_metadata import LaneCommit

UNANSWERED_S: Final = 5.0
"""Time for which a request without an answer may still be on its way into the broker's log."""


@dataclass(frozen=True, slots=True)
class TransactionWriter:
    """Producer that the transaction is of."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Push:
    """Offset that a transaction holds for one partition of a group."""

    writer: TransactionWriter
    commits: tuple[LaneCommit, ...]
    unanswered_until_s: float = 0.0
    """The broker's answer to the last one is missing: until then it may come into effect late."""


class Pushes:
    """By state, if Kafka's own offset is sure; if not, the transaction that touched it last.

        unknown, ended, open  --Kafka has no pending offset-->  sure
        sure                  --a commit of the partition-->    unknown
        sure, open            --put into a transaction-->       open
        open                  --its EndTxn passes-->            ended

    At a start everything is unknown. Only one transaction at a time may have a push on a
    partition of a group, as Kafka keeps the metadata of the last one that was written.
    Invariants: a state with a push is not sure; `_of_writer` lists exactly the open ones.
    """

    def __init__(self) -> None:
        self._sure: set[StateKey] = set()
        self._last: dict[StateKey, Push] = {}
        self._of_writer: dict[TransactionWriter, set[StateKey]] = {}
        self._waiting: set[TransactionWriter] = set()
        self._cut: set[StateKey] = set()
        """States whose partition's log was cut since the last push was noted."""
        self.has_notes = True
        """True: pushes have notes beside them; not where brokers take no metadata that long."""
        self.notes_have_lanes = True
        """True: notes have the lanes that a push is made for; not where that was too long."""
        self.unsaved: set[StateKey] = set()
        """States with content that besides only Kafka's metadata has, not the journal."""

    @property
    def is_idle(self) -> bool:
        """True: no transaction is open, or waits for its turn."""
        return not self._of_writer and not self._waiting

    def is_sure(self, key: StateKey) -> bool:
        """Return whether Kafka's own offset is the one of the state, and nothing is pending."""
        return key in self._sure

    def is_known(self, key: StateKey) -> bool:
        """Return whether the last push was seen here, open or ended, and may be pending."""
        return key in self._last

    def is_of_this_log(self, key: StateKey) -> bool:
        """Return whether the last push was seen here, and its partition's log is still the same."""
        return key in self._last and key not in self._cut

    def is_own(self, key: StateKey, writer: TransactionWriter | None) -> bool:
        """Return whether what is pending there is of the open transaction of `writer`."""
        return writer is not None and key in self._of_writer.get(writer, ())

    def commits_of(self, key: StateKey, writer: TransactionWriter) -> tuple[LaneCommit, ...]:
        """Return the commits that the open transaction of `writer` holds already."""
        return self._last[key].commits if self.is_own(key, writer) else ()

    def may_still_come(self, key: StateKey, writer: TransactionWriter | None, now_s: float) -> bool:
        """Return whether an unanswered push of another writer may still come into effect."""
        push = self._last.get(key)
        return push is not None and push.writer != writer and now_s < push.unanswered_until_s

    def note_sure(self, key: StateKey) -> None:
        """Kafka has no pending offset there, and the state knows Kafka's."""
        self._drop(key)
        self._sure.add(key)

    def note_moved(self, key: StateKey) -> None:
        """The partition was committed as a whole: Kafka is asked before the next push."""
        self._sure.discard(key)

    def note_push(self, key: StateKey, push: Push) -> None:
        """A transaction is about to hold a push, or holds it."""
        self._drop(key)
        self._sure.discard(key)
        self._last[key] = push
        self._of_writer.setdefault(push.writer, set()).add(key)

    def settle_push(self, key: StateKey, push: Push) -> None:
        """The broker has answered the push; nothing to note where the state was forgotten since.

        Another node serves it then, or has: what a push did there must not be taken for known.
        """
        if key in self._last:
            self.note_push(key, push)

    def note_cut(self, topic_id: uuid.UUID, partition: int) -> None:
        """A partition's log was cut: what pushes have counted on may be gone."""
        place = (topic_id, partition)
        self._cut.update(key for key in self._last if (key.topic_id, key.partition) == place)

    def end(self, writer: TransactionWriter) -> None:
        """The writer ends its transaction: its next one is another, of the same epoch."""
        self._of_writer.pop(writer, None)
        self._waiting.discard(writer)

    def wait(self, writer: TransactionWriter) -> None:
        """The writer's push waits for its turn, until `leave`, or the end of its transaction."""
        self._waiting.add(writer)

    def is_waiting(self, writer: TransactionWriter) -> bool:
        """Return whether it still waits. A push must not follow the end of its transaction."""
        return writer in self._waiting

    def leave(self, writer: TransactionWriter) -> None:
        """The writer's turn has come, or it waits no longer."""
        self._waiting.discard(writer)

    def forget(self, key: StateKey) -> None:
        """The state was deleted."""
        self._drop(key)
        self._sure.discard(key)
        self.unsaved.discard(key)

    def forget_where(self, is_lost: Callable[[StateKey], bool]) -> None:
        """Other nodes may change these states: from now on nothing is known, as at a start."""
        for key in [*self._sure, *self._last, *self.unsaved]:
            if is_lost(key):
                self.forget(key)

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        assert not self._sure & self._last.keys()
        assert self._cut <= self._last.keys()
        for writer, keys in self._of_writer.items():
            assert all(self._last[key].writer == writer for key in keys)
        assert all(self._of_writer.values()), "an empty set is removed"

    def _drop(self, key: StateKey) -> None:
        push = self._last.pop(key, None)
        self._cut.discard(key)
        keys = self._of_writer.get(push.writer) if push is not None else None
        if push is None or keys is None:
            return
        keys.discard(key)
        if not keys:
            del self._of_writer[push.writer]
