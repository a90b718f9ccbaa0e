"""Parts in a member's hands: owned, asked back, and wanted by the coordinator.

A part is owned from its assignment to its release, its deadline, or its loss; also while the group
asks for it back. A part that the coordinator gives again meanwhile stays asked for: it goes when it
is released, and comes back as a new one at once, so that its position is read anew.
Source: KIP-848, "Reconciliation"; KIP-429.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from keylane.client.group.effects import Effects, PartsAssigned, PartsLost, RevokeRequested
from keylane.client.values import TopicPartition
from keylane.wire.extensions import LaneRange


class HeldPart(NamedTuple):
    """One part as it was assigned; with another topic id or other keys it is another one."""

    part: TopicPartition
    topic_id: UUID | None = None
    """None: in the classic protocol."""
    lane: LaneRange | None = None
    """Meaning of a lane index; None: a whole partition."""


class HeldParts:
    """Owned parts and the target.

    Invariants: what is asked back is owned; at most one part of a name is owned; an owned part
    that is not asked back is in the target.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._owned: dict[TopicPartition, HeldPart] = {}
        self._target: dict[TopicPartition, HeldPart] = {}
        self._deadlines_s: dict[TopicPartition, float] = {}

    @property
    def owned(self) -> Mapping[TopicPartition, HeldPart]:
        """All that the member has, with what is asked back."""
        return self._owned

    @property
    def revoking(self) -> frozenset[TopicPartition]:
        """Parts that are asked back and still owned."""
        return frozenset(self._deadlines_s)

    @property
    def target(self) -> Mapping[TopicPartition, HeldPart]:
        """Parts that the member shall have, by the newest assignment."""
        return self._target

    @property
    def next_deadline_s(self) -> float:
        """Time at which `expire` has something to do; infinite: never."""
        return min(self._deadlines_s.values(), default=float("inf"))

    def set_target(self, target: Iterable[HeldPart], *, deadline_s: float) -> None:
        """Take what is new, and ask back what is no longer there, until the deadline."""
        self._target = {held.part: held for held in target}
        gone = [
            part
            for part, held in self._owned.items()
            if part not in self._deadlines_s and self._target.get(part) != held
        ]
        if gone:
            self._deadlines_s.update(dict.fromkeys(gone, deadline_s))
            self._effects.add(RevokeRequested(frozenset(gone), deadline_s))
        self._take_new()

    def release(self, parts: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Give up parts that are asked back; return those. Others stay as they are."""
        given_up = frozenset(part for part in parts if part in self._deadlines_s)
        self._drop(given_up)
        self._take_new()
        return given_up

    def expire(self, now_s: float) -> frozenset[TopicPartition]:
        """Lose parts whose deadline has passed; return those."""
        late = frozenset(part for part, at_s in self._deadlines_s.items() if at_s <= now_s)
        if late:
            self._drop(late)
            self._effects.add(PartsLost(late))
            self._take_new()
        return late

    def lose_all(self) -> None:
        """Lose all, and forget the target."""
        if self._owned:
            self._effects.add(PartsLost(frozenset(self._owned)))
        self.give_up_all()

    def give_up_all(self) -> None:
        """Drop all without a notice: the caller has asked for it."""
        self._owned, self._target, self._deadlines_s = {}, {}, {}

    def check(self) -> None:
        """Fail where an invariant does not hold."""
        assert self._deadlines_s.keys() <= self._owned.keys()
        for part, held in self._owned.items():
            assert held.part == part
            assert part in self._deadlines_s or self._target.get(part) == held

    def _drop(self, parts: frozenset[TopicPartition]) -> None:
        for part in parts:
            del self._owned[part], self._deadlines_s[part]

    def _take_new(self) -> None:
        new = {part: held for part, held in self._target.items() if part not in self._owned}
        if new:
            self._owned.update(new)
            self._effects.add(PartsAssigned({part: held.lane for part, held in new.items()}))
