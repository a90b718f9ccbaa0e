"""Methods of an application that the consumer awaits as partitions come and go.

Source: ConsumerRebalanceListener of Apache Kafka 4.3; KIP-429; KIP draft "Cooperative consumer
processing semantic", whose listener gets ranges of keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from keylane.client.values import KeyRanges, TopicPartition

Parts = frozenset[TopicPartition]
Ranges = dict[TopicPartition, KeyRanges]


class RebalanceListener:
    """Override the methods with ranges, or those without; all are called within a poll.

    Keys of ranges are the broker's partitions; () is a whole one. Partitions of the other methods
    are as records have them: lane indexes where the topic has lanes.
    """

    async def on_partitions_with_ranges_assigned(self, ranges: Ranges) -> None:
        """These were added, before records of them are given."""

    async def on_partitions_with_ranges_revoked(self, ranges: Ranges) -> None:
        """These are given up when this returns; what is done of them is committed already."""

    async def on_partitions_with_ranges_lost(self, ranges: Ranges) -> None:
        """These belong to other members already."""

    async def on_partitions_assigned(self, parts: Parts) -> None:
        """These were added, before records of them are given."""

    async def on_partitions_revoked(self, parts: Parts) -> None:
        """These are given up when this returns."""

    async def on_partitions_lost(self, parts: Parts) -> None:
        """These belong to other members already; by default, as `on_partitions_revoked`."""
        await self.on_partitions_revoked(parts)


def _overrides(listener: RebalanceListener, name: str) -> bool:
    return getattr(type(listener), name) is not getattr(RebalanceListener, name)


async def notify(
    listener: RebalanceListener | None,
    event: str,
    parts: Parts,
    ranges: Mapping[TopicPartition, KeyRanges],
) -> None:
    """Call the method of an event ("assigned", "revoked", "lost"), with ranges if it is there."""
    if listener is None or not parts:
        return
    with_ranges = f"on_partitions_with_ranges_{event}"
    if _overrides(listener, with_ranges):
        await getattr(listener, with_ranges)(dict(ranges))
    else:
        await getattr(listener, f"on_partitions_{event}")(parts)
