"""Scanned regions and the log start of each partition, as readers of all nodes have seen them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.lineage import Lineages, PartitionKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.split_table import SplitTable

SCANS_MAX: Final = 100_000
"""Scans that are kept, by partition and split: about 1 KiB each at 16 lanes."""
OUTPUTS_MAX: Final = 2_000_000
"""Outputs of all these scans, 8 bytes each and region; clients may choose 1,024 lanes."""


class Scans(SplitTable[ScanIndex]):
    """The scans of all partitions that this process serves.

    Invariant: there are no more log starts and new leaders than scans.
    """

    def __init__(self, lineages: Lineages) -> None:
        super().__init__(OUTPUTS_MAX, SCANS_MAX)
        self._lineages = lineages
        self._split_counts: Counter[PartitionKey] = Counter()
        """Scans by partition."""
        self._used: set[PartitionSplit] = set()
        """Scans used since the last `sweep`."""
        self._log_starts: dict[PartitionKey, int] = {}
        self._new_leaders: dict[PartitionKey, int] = {}
        """Leader epochs in metadata, of scanned logs that are to be compared."""

    def note_leader(self, place: PartitionKey, leader_epoch: int) -> None:
        """Note a later leader of a partition: its log may be another one.

        The epoch comes from metadata. Clients ask for offsets before they fetch, so a reader
        would find a new log too late for the first answer.
        """
        lineage = self._lineages.find(place)
        if lineage is not None and lineage.leader_epoch < leader_epoch and lineage.newest >= 0:
            self._new_leaders[place] = leader_epoch

    def note_past(self, block: ScannedBlock, leader_epoch: int) -> None:
        """Note the leader of a block that was published before this process began.

        A later leader may have another log, and no node is left that has met the cut.
        """
        if block.leader_epoch < leader_epoch:
            self.note_leader(block.at.place, leader_epoch)

    def known(self, key: PartitionSplit) -> ScanIndex:
        """Return the scan of a log, or an empty one until its new leader's log was compared.

        A reader that connects compares it. The scan is not to be added to.
        """
        return ScanIndex(key.key_split) if self.is_unsure(key.place) else self.of(key)

    def note(self, block: ScannedBlock) -> None:
        """Add a block that a reader here or on another node has looked at."""
        place = block.at.place
        scan = self.of(block.at)
        scan.add(block.start, block.end, block.last_record_offsets, holes=block.holes)
        if not block.epochs:  # of another node; a reader of this one has noted them
            seen = (block.leader_epoch, block.start)
            self._lineages.of(place).note(block.end, (seen,))
        start, known = block.log_start_offset, self._log_starts.get(place, -1)
        if start >= 0 and start != known:
            self._log_starts[place] = start
            if start > known:
                scan.advance_log_start(start)

    def contradicts(self, block: ScannedBlock) -> bool:
        """Return whether another node has read from a later leader what was seen here before.

        Ask before `note`. The log was cut there, and the reader had nothing to compare it with.
        """
        place = block.at.place
        if not block.epochs and self.is_unsure(place):
            return self._new_leaders[place] <= block.leader_epoch
        lineage = self._lineages.of(place)
        return 0 <= lineage.newest < block.leader_epoch and block.start < lineage.end

    def on_truncated(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """Forget the log from `end` on, and its start: another log may begin elsewhere."""
        self._log_starts.pop((topic_id, partition), None)
        self._new_leaders.pop((topic_id, partition), None)
        self._lineages.of((topic_id, partition)).truncate(end)
        super().on_truncated(topic_id, partition, end)

    def log_start_of(self, place: PartitionKey) -> int:
        """Return the log start, -1 when unknown."""
        return -1 if self.is_unsure(place) else self._log_starts.get(place, -1)

    def is_unsure(self, place: PartitionKey) -> bool:
        """Return whether the log was scanned under an earlier leader than it has now."""
        leader_epoch = self._new_leaders.get(place)
        if leader_epoch is None:
            return False
        if self._lineages.of(place).leader_epoch < leader_epoch:
            return True
        del self._new_leaders[place]
        return False

    def of(self, key: PartitionSplit) -> ScanIndex:
        """Return the scan of a partition, to add to."""
        self._used.add(key)
        return super().of(key)

    def _make(self, key: PartitionSplit) -> ScanIndex:
        self._split_counts[key.place] += 1
        return ScanIndex(key.key_split)

    def topic_ids(self) -> set[uuid.UUID]:
        """Return the topics that have scans."""
        return {key.topic_id for key in self._by_split}

    def forget_topics(self, topic_ids: Collection[uuid.UUID]) -> list[PartitionSplit]:
        """Forget topics that are gone; return the keys of what was forgotten."""
        gone = [key for key in self._by_split if key.topic_id in topic_ids]
        for key in gone:
            self.forget(key)
        return gone

    def sweep(self, is_kept: Callable[[PartitionSplit], bool]) -> list[PartitionSplit]:
        """Forget scans without a use since the last call, except the kept ones; return their keys.

        The state is then as after a start: offsets behind a stable offset are read again if needed.
        """
        idle = [key for key in self._by_split if key not in self._used and not is_kept(key)]
        for key in idle:
            self.forget(key)
        self._used.clear()
        return idle

    def forget(self, key: PartitionSplit) -> None:
        """Forget a scan, and what is known of its partition with the last one."""
        if key not in self._by_split:
            return
        super().forget(key)
        self._used.discard(key)
        place = key.place
        self._split_counts[place] -= 1
        if not self._split_counts[place]:
            # The epochs of the log stay for its other splits: a new leader above all.
            del self._split_counts[place]
            self._log_starts.pop(place, None)
            self._new_leaders.pop(place, None)

    def raise_to_log_start(
        self, place: PartitionKey, state: OffsetState, before: OffsetState | None
    ) -> None:
        """Move positions below the log start up to it, as far as the start is known.

        before: the state at the last commit. A member that has just committed below the log
        start has read there: then the log begins lower than it did, and nothing is moved.
        """
        start = self.log_start_of(place)
        if state.stable_position >= start:
            return
        said = {item.offset for _, _, item in state.positions() if item.committed}
        if before is not None:
            said -= {item.offset for _, _, item in before.positions() if item.committed}
        if min(said, default=start) < start:
            del self._log_starts[place]
        else:
            state.advance_log_start(start)
