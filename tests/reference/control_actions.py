"""Groups and a node that a control port acts on, in the place of real ones."""

from __future__ import annotations

from keylane.offsets.resets import GroupReset, PartitionReset
from keylane.proxy.groups.rebalanced import LaneMove, Rebalanced, nothing
from keylane.proxy.topics.draining import DrainReport, state_of


class FakeActions:
    """The group `billing` has offsets of `orders`, and a busy member."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.resets: list[tuple[GroupReset, bool]] = []
        """Resets, and whether each was a dry run."""

    def now_ms(self) -> int:
        return 1_700_000_000_000

    async def has_group(self, group: str) -> bool:
        return group == "billing"

    async def rebalance(self, group: str, *, is_dry: bool) -> Rebalanced:
        if group != "billing":
            return nothing("the group has no members that are known here")
        move = LaneMove(
            topic="orders",
            lane_index=3,
            from_member="billing-0-7c1f",
            to_member="billing-1-02aa",
            bytes_per_s=4100.0,
        )
        return Rebalanced(
            balance=1.31, balance_after=1.02, moves=(move,), is_asked=not is_dry, reason=None
        )

    async def reset(self, reset: GroupReset, *, is_dry: bool) -> list[PartitionReset]:
        if self.failure is not None:
            raise self.failure
        self.resets.append((reset, is_dry))
        done = PartitionReset(
            topic="orders",
            partition=0,
            from_offset=1200,
            to_offset=1100,
            lanes=16,
            offsets_again=100,
            offsets_skipped=0,
            is_clamped=False,
        )
        return [done]


class FakeNode:
    """Node 1 of 1 to 3; node 3 has no control port."""

    def __init__(self) -> None:
        self.number: int | None = 1
        self.others, self.is_draining = True, False

    def is_known(self, number: int) -> bool:
        return number in {1, 2, 3}

    def control_of(self, number: int) -> str | None:
        return "http://node-2:9100" if number == 2 else None

    def others_serve(self) -> bool:
        return self.others

    def report(self) -> DrainReport:
        return DrainReport(
            node=1,
            state=state_of(is_draining=self.is_draining, partitions=25, connections=12),
            partitions=25,
            groups=("billing",),
            groups_left_out=0,
            connections=12,
        )

    def set_draining(self, *, is_draining: bool) -> bool:
        was_draining, self.is_draining = self.is_draining, is_draining
        return was_draining != is_draining
