"""Metrics of ordered share groups, bounded in series.

Source: Prometheus, "Do not overuse labels"; docs/decisions/018, 048.

There is no series per partition, member or key: a group's topic has one of each, and of more than
SERIES_MAX pairs those that are furthest behind. `GET /groups/NAME` has the partitions one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from keylane.proxy.control.shares.windows import SharedWindow
from keylane.proxy.runtime.stats import COUNTER, GAUGE, Sample
from keylane.proxy.share.held_bytes import HeldBytes
from keylane.proxy.share.tallies import GROUP_CHARS_MAX, Pair, ShareTallies
from keylane.share.sessions import ShareSession

SERIES_MAX: Final = 100
"""Groups and topics that are listed one by one."""

HELP: Final[Mapping[str, str]] = {
    "partitions": "Partitions that are open at this node.",
    "partitions_unsettled": "Open partitions of which nothing is handed out, as earlier records "
    "may be missing here.",
    "partitions_failed": "Open partitions whose members are answered an error.",
    "members": "Members with a session of which the topic is a part.",
    "records_held": "Records that keylane holds, at members and before them.",
    "records_ready": "Of records_held, those that the next request gets.",
    "records_in_flight": "Of records_held, those at members.",
    "records_waiting": "Of records_held, those behind another record of their key, or in a pause.",
    "records_unconfirmed": "Of records_held, those that members have decided, before the broker "
    "has confirmed it.",
    "records_released": "Of records_held, those that were given back and come again.",
    "last_attempts": "Records that are not delivered again if they are released once more.",
    "window_used_ratio": "Offsets from the oldest record held to the highest one that was "
    "acquired, as a part of `look_ahead`, in the fullest partition.",
    "oldest_seconds": "Time since the oldest record held was first acquired.",
}
LEFT_OUT: Final = "Pairs of group and topic without series: those that are least behind."
HANDED_OUT: Final = "Records that members have got, as often as they got them."
REDELIVERED: Final = "Of handed_out, records that had been delivered before."
HAND_OVERS: Final = (
    "Partitions that went on at another node with the locks of their records: `offered` by this "
    "node and `followed` there, or `taken` from another. What is offered and not followed comes "
    "again, one delivery later."
)
HELD_BYTES: Final = "Bytes of records that keylane holds."
HELD_BYTES_MAX: Final = "Bound of held_bytes, of all share groups together."
GROUP_BYTES: Final = "Bytes of records that keylane holds, by group."


@dataclass(slots=True)
class _SharedTopic:
    """Numbers of one group and topic; names are those of metrics."""

    partitions: int = 0
    partitions_unsettled: int = 0
    partitions_failed: int = 0
    members: int = 0
    records_held: int = 0
    records_ready: int = 0
    records_in_flight: int = 0
    records_waiting: int = 0
    records_unconfirmed: int = 0
    records_released: int = 0
    last_attempts: int = 0
    window_used_ratio: float = 0.0
    oldest_seconds: float = 0.0

    def add(self, window: SharedWindow) -> None:
        """Take in one partition."""
        summary = window.summary
        self.partitions += 1
        self.partitions_unsettled += not summary.is_settled
        self.partitions_failed += window.error_code != 0
        self.records_held += summary.records
        self.records_ready += summary.ready
        self.records_in_flight += summary.in_flight
        self.records_waiting += summary.waiting
        self.records_unconfirmed += summary.unconfirmed
        self.records_released += summary.released
        self.last_attempts += summary.last_attempts
        self.window_used_ratio = max(self.window_used_ratio, window.used)
        self.oldest_seconds = max(self.oldest_seconds, summary.oldest_s)

    @property
    def behind(self) -> tuple[int, float, float]:
        """Return the measure by which pairs are chosen; the largest are shown."""
        stopped = self.partitions_failed + self.partitions_unsettled
        return stopped, self.window_used_ratio, self.oldest_seconds


class ShareGauges:
    """Numbers of all windows at the last `look`, which each scrape awaits first."""

    def __init__(
        self,
        windows: Callable[[], Awaitable[Sequence[SharedWindow]]],
        sessions: Iterable[ShareSession],
        tallies: ShareTallies,
        held_bytes: HeldBytes,
    ) -> None:
        self._look, self._sessions = windows, sessions
        self._tallies, self._held_bytes = tallies, held_bytes
        self._windows: Sequence[SharedWindow] = ()

    async def look(self) -> None:
        """Look at all windows anew."""
        self._windows = await self._look()

    def samples(self) -> Iterator[Sample]:
        """Yield the numbers. Cost: 4 us per partition, and 1 per session."""
        topics: dict[Pair, _SharedTopic] = {}
        for window in self._windows:
            pair = window.place.group[:GROUP_CHARS_MAX], window.place.topic
            topics.setdefault(pair, _SharedTopic()).add(window)
        for pair, count in self._members().items():
            if pair in topics:
                topics[pair].members = count
        shown = sorted(heapq.nlargest(SERIES_MAX, topics, key=lambda pair: topics[pair].behind))
        for field in fields(_SharedTopic):
            name, text = f"keylane_share_{field.name}", HELP[field.name]
            for pair in shown:
                yield Sample(name, GAUGE, text, _labels(pair), getattr(topics[pair], field.name))
        left_out = len(topics) - len(shown)
        yield Sample("keylane_share_series_left_out", GAUGE, LEFT_OUT, (), left_out)
        tallies = self._tallies
        for name, text, counts in (
            ("keylane_share_handed_out_total", HANDED_OUT, tallies.handed_out),
            ("keylane_share_redelivered_total", REDELIVERED, tallies.redelivered),
        ):
            for pair in sorted(counts):
                yield Sample(name, COUNTER, text, _labels(pair), counts[pair])
        for step, count in tallies.hand_overs.items():
            labels = (("step", step),)
            yield Sample("keylane_share_hand_overs_total", COUNTER, HAND_OVERS, labels, count)
        yield from self._bytes()

    def _members(self) -> dict[Pair, int]:
        """Return the number of members by group and topic; one may have a session per broker."""
        names = {window.place.topic_id.bytes: window.place.topic for window in self._windows}
        members: dict[Pair, set[str]] = {}
        for session in self._sessions:
            for topic in _topics_of(session, names):
                pair = session.key.group[:GROUP_CHARS_MAX], topic
                members.setdefault(pair, set()).add(session.key.member_id)
        return {pair: len(found) for pair, found in members.items()}

    def _bytes(self) -> Iterator[Sample]:
        held = self._held_bytes
        yield Sample("keylane_share_held_bytes", GAUGE, HELD_BYTES, (), held.total)
        yield Sample("keylane_share_held_bytes_max", GAUGE, HELD_BYTES_MAX, (), held.bytes_max)
        largest = heapq.nlargest(SERIES_MAX, held.by_group.items(), key=lambda each: each[1])
        by_label: dict[str, int] = {}
        for group, size_bytes in largest:
            label = group[:GROUP_CHARS_MAX]
            by_label[label] = by_label.get(label, 0) + size_bytes
        for label, size_bytes in sorted(by_label.items()):
            labels = (("group", label),)
            yield Sample("keylane_share_group_held_bytes", GAUGE, GROUP_BYTES, labels, size_bytes)


def _labels(pair: Pair) -> tuple[tuple[str, str], ...]:
    return ("group", pair[0]), ("topic", pair[1])


def _topics_of(session: ShareSession, names: Mapping[bytes, str]) -> Iterable[str]:
    """Return the topics of a session's partitions that are open here."""
    return {names[topic_id] for topic_id, _ in session.places if topic_id in names}
