"""Partition counts, as the cluster has them, for the checks of assignments."""

from __future__ import annotations

from keylane.proxy.cluster.cluster import Cluster


class ClusterTopics:
    """Implements `assignments.Topics`: what is known is believed, what is not is asked."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def partition_count(self, topic: str, *, at_least: int) -> int | None:
        """Return how many partitions a topic has; None: there is none. Raises: UpstreamLost."""
        known = self._known(topic)
        if known is None or known < at_least:
            await self._cluster.refresh_topic(topic)
            known = self._known(topic)
        return known

    def is_lane_name(self, topic: str) -> bool:
        """Return whether the name stands for lanes of another topic."""
        return self._cluster.registry.physical_name(topic) != topic

    def _known(self, topic: str) -> int | None:
        registry = self._cluster.registry
        found = registry.topics.get(topic)
        # Lanes keep to the count that they began with; key ranges are of real partitions.
        return registry.grown.get(topic, found.partition_count) if found is not None else None
