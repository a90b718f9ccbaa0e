"""Time for which each broker is waited for, and brokers that did not answer a moment ago.

Source: docs/decisions/040.

A broker that hangs takes connections and requests, and answers none; a slow one answers later. The
difference shows only afterwards. So the wait is short at first, and each wait in vain doubles the
next one, up to that of Kafka's clients. An answer that took long keeps the wait above its time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

log = logging.getLogger("keylane.brokers")

ANSWER_S_MIN: Final = 5.0
"""Time of a broker for an answer at first; beside the time that it is asked to wait."""
ANSWER_S_MAX: Final = 30.0
"""Kafka clients' `request.timeout.ms` default: a broker so slow is still served."""
MARGIN: Final = 3.0
"""The next answer may take this many times what the last one took."""
SLOW_S: Final = 30.0
"""Time for which a broker that was overtaken by another one is asked after all others."""
ADDRESSES_MAX: Final = 1000
"""Brokers get new addresses, and the old ones are not used again."""

Address = tuple[str, int]


@dataclass(slots=True)
class _Known:
    """State of one address; times are the clock's."""

    answer_s: float = ANSWER_S_MIN
    late_since_s: float | None = None
    """Time when the first request without an answer was given up; None: it has answered since."""
    slow_until_s: float = float("-inf")


class Patience:
    """Waits for all brokers. Invariant: an address is forgotten only with all others."""

    def __init__(
        self,
        name_of: Callable[[Address], str] = lambda _: "?",
        *,
        clock: Callable[[], float] = time.monotonic,
        on_late: Callable[[str], None] = lambda _: None,
    ) -> None:
        """name_of: gives the id of the broker at an address, "?" where it is not known.

        on_late: gets that id for each request that was given up.
        """
        self._name_of, self._clock, self._on_late = name_of, clock, on_late
        self._known: dict[Address, _Known] = {}

    def seconds(self, address: Address) -> float:
        """Return how long an answer of the broker is waited for."""
        known = self._known.get(address)
        return ANSWER_S_MIN if known is None else known.answer_s

    def answered(self, address: Address, took_s: float) -> None:
        """Note an answer; `took_s` is without the time that the broker was asked to wait."""
        known = self._known.get(address)
        if known is None:
            if took_s * MARGIN <= ANSWER_S_MIN:
                return  # as nearly every answer: nothing to remember
            known = self._of(address)
        known.answer_s = min(max(ANSWER_S_MIN, took_s * MARGIN, known.answer_s / 2), ANSWER_S_MAX)
        known.slow_until_s = float("-inf")
        if known.late_since_s is not None:
            log.warning(
                "broker answers again broker=%s address=%s:%d silent_s=%.0f",
                self._name_of(address), *address, self._clock() - known.late_since_s,
            )  # fmt: skip
            known.late_since_s = None

    def timed_out(self, address: Address, waited_s: float) -> None:
        """Note a lost answer; `waited_s` is without the time that the broker was asked to wait."""
        known = self._of(address)
        self._on_late(self._name_of(address))
        if waited_s >= known.answer_s:  # others waited beside it, and are one reason
            known.answer_s = min(2 * known.answer_s, ANSWER_S_MAX)
        if known.late_since_s is None:
            known.late_since_s = self._clock()
            log.warning(
                "broker does not answer broker=%s address=%s:%d waited_s=%g",
                self._name_of(address), *address, waited_s,
            )  # fmt: skip

    def overtaken(self, address: Address) -> None:
        """Ask this broker later: another one was asked as well, since no answer had come."""
        self._of(address).slow_until_s = self._clock() + SLOW_S

    def is_late(self, address: Address) -> bool:
        """Return whether it left the last request unanswered, or was overtaken a moment ago."""
        known = self._known.get(address)
        if known is None:
            return False
        return known.late_since_s is not None or self._clock() < known.slow_until_s

    def in_order(self, addresses: Iterable[Address]) -> list[Address]:
        """Return each once: those that answer first, else in the order in which they came."""
        return sorted(dict.fromkeys(addresses), key=self.is_late)

    def _of(self, address: Address) -> _Known:
        if address not in self._known and len(self._known) >= ADDRESSES_MAX:
            self._known.clear()
        return self._known.setdefault(address, _Known())
