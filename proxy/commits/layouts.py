"""Meaning of the lane indexes of each view: pinned while groups have offsets on them.

Source: docs/decisions/005.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

from keylane.config.node import ProxyConfig
from keylane.errors import ConfigInvalid
from keylane.keyrange.lane import HASH_FINGERPRINTS
from keylane.offsets.records.journal import TIMESTAMP_MS_MAX, JournalRecord, LayoutValue
from keylane.offsets.table import OffsetTable
from keylane.proxy.topics.registry import TopicRegistry
from keylane.proxy.topics.view import View

REMEDY: Final = "Stop the groups, then start once with accept_layout naming the topic"


class Layouts:
    """The layouts that are pinned, by view; of each the newest counts."""

    def __init__(self, config: ProxyConfig, registry: TopicRegistry) -> None:
        self._config, self._registry = config, registry
        self.pinned: dict[str, LayoutValue] = {}

    def start(self, table: OffsetTable) -> None:
        """Hold topics to the layouts that their groups' offsets stand on.

        Raises: ConfigInvalid, when lanes changed under groups that have offsets.
        """
        registry = self._registry
        self.pinned = table.layouts()
        used = {key.topic_id for key, _ in table.items()}
        for name, pinned in self.pinned.items():
            if pinned.topic_id in used and name not in self._config.accept_layout:
                registry.refuse_left_out(name)
            found = registry.rule_of(name)
            topic = registry.topics.get(found[0]) if found is not None else None
            if found is None or topic is None or topic.topic_id != pinned.topic_id:
                continue
            if topic.topic_id not in used or topic.name in self._config.accept_layout:
                continue
            if found[1] != pinned.lane_count:
                raise ConfigInvalid(
                    f"lanes: topic {topic.name} has {pinned.lane_count} lanes per partition, and "
                    f"groups with offsets; {found[1]} would move lanes under them. {REMEDY}"
                )
            hashes = {pinned.fingerprint, registry.fingerprint_of(name)}
            if len(hashes) > 1 and HASH_FINGERPRINTS["murmur2"] in hashes:
                raise ConfigInvalid(
                    f"lanes: topic {topic.name} has groups with offsets, whose keys had another "
                    f"hash than now; their lanes would begin again at the stable offset. {REMEDY}"
                )
            if len(hashes) > 1:
                raise ConfigInvalid(
                    f"lanes: topic {topic.name} has groups with offsets, whose lanes were cut at "
                    f"other hashes than now. {REMEDY}"
                )
            registry.pin_partitions(topic.name, pinned.partition_count)

    def note_loaded(self, table: OffsetTable) -> None:
        """Take in what other nodes have pinned since the start."""
        for name, layout in table.layouts().items():
            known = self.pinned.get(name)
            if known is None or layout.timestamp_ms > known.timestamp_ms:
                self.pinned[name] = layout

    def names_of(self, topic_id: uuid.UUID) -> list[str]:
        """Names by which groups have committed on a topic, as far as this node has loaded them."""
        return [name for name, layout in self.pinned.items() if layout.topic_id == topic_id]

    def unpinned(self, view: View, now_ms: int) -> dict[str, LayoutValue]:
        """Return the layout to pin by the view's name; none: it is pinned, or has no lanes."""
        if view.lanes is None:
            return {}
        known, layout = self.pinned.get(view.name), view.layout
        if known is not None and (
            known.topic_id == view.topic_id
            and known.partition_count == layout.partition_count
            and known.lane_count == layout.lane_count
            and known.fingerprint == layout.fingerprint
        ):
            return {}
        if known is not None:
            # Two layouts may stand in two partitions: the newer one counts.
            now_ms = min(max(now_ms, known.timestamp_ms + 1), TIMESTAMP_MS_MAX)
        value = LayoutValue(
            timestamp_ms=now_ms,
            topic_id=view.topic_id,
            partition_count=layout.partition_count,
            lane_count=layout.lane_count,
            fingerprint=layout.fingerprint,
        )
        return {view.name: value}

    def pin(
        self, table: OffsetTable, layouts: dict[str, LayoutValue], partition: int | None
    ) -> list[JournalRecord]:
        """Pin layouts; return what to append. partition: as `OffsetTable.pin_layout` has it."""
        self.pinned |= layouts
        return [
            record
            for name, layout in layouts.items()
            for record in table.pin_layout(name, layout, partition=partition)
        ]

    def unpin(self, names: Iterable[str]) -> None:
        """Forget layouts that were not written: the next commit on their views writes them."""
        for name in names:
            self.pinned.pop(name, None)
