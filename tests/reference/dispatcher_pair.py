"""A dispatcher and its naive twin, to which all is said alike, and which answer alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keylane.share.acks import check_batches
from keylane.share.dispatcher import Dispatcher
from keylane.wire.share import AckBatch
from tests.reference.naive_dispatcher import NaiveDispatcher


def offsets_of(batches: Iterable[AckBatch]) -> list[int]:
    """Return the offsets of ranges, which ascend and do not overlap."""
    batches = list(batches)
    assert check_batches(batches) == 0
    return [offset for first, last, _ in batches for offset in range(first, last + 1)]


class Block:
    """A block of a log that was never cut."""

    def epoch_of(self, _row: int) -> int:
        """Return the one epoch."""
        return 0


class DispatcherPair:
    """Both sides of each call; `check` compares what can be asked at any time."""

    def __init__(
        self,
        *,
        several_per_key: int,
        pause_s: Callable[[int], float],
        copies_rejected: bool,
        frees_early: bool,
        last_delivery: int | None,
    ) -> None:
        self.real = Dispatcher(
            several_per_key=several_per_key,
            pause_s=pause_s,
            copies_rejected=copies_rejected,
            frees_early=frees_early,
        )
        self.twin = NaiveDispatcher(several_per_key, pause_s, copies_rejected, frees_early)
        self.real.last_delivery = self.twin.last_delivery = last_delivery

    def check(self, now_s: float) -> None:
        real, twin = self.real, self.twin
        real.wake(now_s)
        real.check()
        assert set(real.records) == set(twin.fates)
        assert set(real.gone) == {fate.offset for fate in twin.all() if fate.is_missed}
        assert real.ready_count == len(twin.ready(now_s))
        assert real.out_count == len(twin.all("out"))
        assert real.member_count == len(twin.members)
        assert real.locked_count == twin.locked_count
        assert real.freed_count == sum(fate.is_free for fate in twin.all())
        is_locked = any(fate.is_locked for fate in twin.all("unsent"))
        assert real.has_acks == bool(twin.gaps or is_locked)
        assert sorted(each.offset for each in real.to_copy) == [
            fate.offset for fate in twin.all("copying")
        ]
        if waits := twin.waits(now_s):
            assert real.next_wake_s is not None
            assert now_s < real.next_wake_s <= min(waits)

    # Members.
    def join(self, member: Any) -> None:
        self.real.join(member)
        self.twin.join(member)

    def leave(self, member: Any, now_s: float) -> None:
        self.real.leave(member, now_s)
        self.twin.leave(member, now_s)

    def take(self, member: Any, records_max: int, now_s: float) -> list[Any]:
        taken = self.real.take(member, records_max, now_s)
        assert [each.offset for each in taken] == self.twin.take(member, records_max, now_s)
        return taken

    def put_back(self, member: Any, records: Sequence[Any], now_s: float) -> None:
        self.real.put_back(member, records, now_s)
        self.twin.put_back(member, [record.offset for record in records], now_s)

    def acknowledge(
        self, member: Any, batches: Sequence[AckBatch], now_s: float, on_over: Callable[[int], None]
    ) -> int | None:
        codes: list[int] = []
        """Of the one that has answered first, until the other has."""

        def over(code: int) -> None:
            if not codes:
                codes.append(code)
                return
            assert codes.pop() == code
            on_over(code)

        code = self.real.acknowledge(member, batches, now_s, lambda t: over(t.error_code))
        assert self.twin.acknowledge(member, batches, now_s, over) == code
        return code

    def expire(self, now_s: float) -> int:
        count = self.real.expire(now_s)
        assert count == self.twin.expire(now_s)
        return count

    def copied(self, now_s: float) -> list[int]:
        """Write all dead letters."""
        copies, self.real.to_copy = self.real.to_copy, []
        for record in copies:
            self.real.copied(record, now_s)
            self.twin.copied(record.offset, now_s)
        return [record.offset for record in copies]

    # The broker.
    def acquire(self, offset: int, point: int, count: int, now_s: float) -> None:
        self.real.acquire([offset], [point], count, now_s, block=Block())
        self.twin.acquire([offset], [point], count, now_s)

    def acquire_gap(self, offset: int) -> None:
        self.real.acquire_gap(offset, offset)
        self.twin.acquire_gap(offset, offset)

    def fetched(self, sent_s: float, highest: int | None, now_s: float) -> list[int]:
        archived = sorted(r.offset for r in self.real.fetched(sent_s, highest, now_s))
        assert archived == self.twin.fetched(sent_s, highest, now_s)
        return archived

    def unsettle(self) -> None:
        self.real.is_settled = self.twin.is_settled = False

    def be_quiet(self, until_s: float, now_s: float) -> None:
        self.real.be_quiet(until_s, now_s)
        self.twin.be_quiet(until_s)

    def settle(self, now_s: float) -> list[int]:
        finished = sorted(record.offset for record in self.real.settle(now_s))
        assert finished == self.twin.settle(now_s)
        return finished

    def next_acks(self) -> list[AckBatch]:
        batches = self.real.next_acks()
        types = {o: b.types[0] for b in batches for o in range(b.first, b.last + 1)}
        assert offsets_of(batches) == sorted(types)
        assert types == self.twin.next_acks()
        return batches

    def acked(self, batches: Sequence[AckBatch], now_s: float) -> None:
        self.real.acked(batches, now_s)
        self.twin.acked(batches, now_s)

    def refused(self, batches: Sequence[AckBatch], code: int, now_s: float) -> None:
        self.real.refused(batches, code, now_s)
        self.twin.refused(batches, code, now_s)

    def unsend(self, batches: Sequence[AckBatch]) -> None:
        self.real.unsend(batches)
        self.twin.unsend(batches)

    def renewals(self, now_s: float) -> list[AckBatch]:
        batches = self.real.renewals(now_s)
        assert set(offsets_of(batches)) == self.twin.renewals(now_s)
        return batches

    def renewed(self, batches: Sequence[AckBatch], now_s: float) -> None:
        self.real.renewed(batches, now_s)
        self.twin.renewed(batches, now_s)

    def lose(self, batches: Sequence[AckBatch], now_s: float) -> None:
        self.real.lose(batches, now_s)
        self.twin.lose(batches, now_s)

    def lose_all(self, now_s: float) -> None:
        self.real.lose_all(now_s)
        self.twin.lose_all(now_s)
