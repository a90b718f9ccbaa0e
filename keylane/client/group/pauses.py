"""Pauses before a request is repeated.

Source: Kafka's retry.backoff.ms and retry.backoff.max.ms (KIP-580): pauses double, and differ from
member to member, so that members of one group do not come at once.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from keylane.client.group.settings import RETRY_S_MAX, RETRY_S_MIN

SPREAD: Final = 0.2
"""Pauses are within this part of their mean, as with Kafka's ExponentialBackoff."""


class Pauses:
    """Failures in a row, and the end of the pause after the last one."""

    def __init__(self, identity: str) -> None:
        self._factor = 1 - SPREAD + 2 * SPREAD * crc32(identity.encode()) / 0xFFFF_FFFF
        self.failures = 0
        self.until_s = 0.0

    def begin(self, now_s: float) -> None:
        """Note a failure."""
        mean_s = min(RETRY_S_MIN * 2 ** min(self.failures, 10), RETRY_S_MAX)
        self.failures += 1
        self.until_s = now_s + mean_s * self._factor

    def end(self) -> None:
        """Note a success."""
        self.failures, self.until_s = 0, 0.0
