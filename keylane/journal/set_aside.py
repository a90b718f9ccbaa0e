"""Damaged records of keylane's own topics: counted, logged, with their places.

Source: docs/decisions/034.

A client that may write to such a topic can write any number, so lines and places are bounded.
A line has the reason that a parser gives, which never holds what the record says.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from keylane.bounded import BoundedDict
from keylane.offsets.values import Damaged

log = logging.getLogger("keylane.records")

PLACES_MAX: Final = 1000
"""Of one topic, the newest: a record that is read again is no new one."""
LINES_MAX: Final = 20
INTERVAL_S: Final = 10.0
"""At most so many lines in so many seconds; enough to see a pattern."""
SHOWN_MAX: Final = 3


class SetAside:
    """Records that were set aside since the start. Used by the event loop's thread alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        """By topic."""
        self.on_noted: Callable[[str, Damaged], None] = lambda *_: None
        """Receives the topic and the record, as often as there is a line in the log."""
        self._clock = clock
        self._places: dict[str, BoundedDict[tuple[int, int], None]] = {}
        self._window_s, self._lines, self._unlogged = clock(), 0, 0

    def note(self, topic: str, damaged: Damaged) -> None:
        """Count a record and log where it stands, once."""
        places = self._places.setdefault(topic, BoundedDict(PLACES_MAX))
        place = damaged.partition, damaged.offset
        if place in places:
            return
        places[place] = None
        self.counts[topic] += 1
        if self._may_log():
            log.error(
                "record set aside topic=%s partition=%d offset=%d reason=%s",
                topic, damaged.partition, damaged.offset, damaged.reason,
            )  # fmt: skip
            self.on_noted(topic, damaged)

    def note_more(self, topic: str, count: int) -> None:
        """Count further records whose places are not kept."""
        if count <= 0:
            return
        self.counts[topic] += count
        log.error("more records set aside topic=%s count=%d", topic, count)

    def lines(self) -> list[str]:
        """Return a line for each topic: its count, and the places of the last ones."""
        found = []
        for topic, places in self._places.items():
            last = list(places)[-SHOWN_MAX:]
            where = ", ".join(f"partition {part} offset {offset}" for part, offset in last)
            more = "the last at " if self.counts[topic] > len(last) else "at "
            found.append(f"set aside: {self.counts[topic]} records of {topic}, {more}{where}")
        return found

    def _may_log(self) -> bool:
        now_s = self._clock()
        if now_s - self._window_s >= INTERVAL_S:
            if self._unlogged:
                log.error("more records set aside: not logged one by one count=%d", self._unlogged)
            self._window_s, self._lines, self._unlogged = now_s, 0, 0
        if self._lines >= LINES_MAX:
            self._unlogged += 1
            return False
        self._lines += 1
        return True
