"""A window of records whose broker and members a test plays by hand."""

from __future__ import annotations

from keylane.share.dispatcher import Dispatcher
from keylane.share.held import AckTicket, HeldRecord
from keylane.wire.share import AckBatch

NOW_S = 1000.0
A, B = 1, 2  # keys


class Partition:
    """A dispatcher with a clock, members "m" and "n", and a broker that is asked by hand."""

    def __init__(self, points: list[int], **options: object) -> None:
        """points: keys of the offsets from 0 on, all of which are acquired."""
        self.dispatcher = Dispatcher(**options)  # type: ignore[arg-type]
        self.points = points
        self.now_s = NOW_S
        self.codes: list[int] = []
        """Of acknowledgements that are over."""
        for member in ("m", "n"):
            self.dispatcher.join(member)
        self.acquire(*range(len(points)))
        self.dispatcher.settle(self.now_s)

    def acquire(self, *offsets: int, count: int = 1) -> None:
        points = [self.points[offset] for offset in offsets]
        self.dispatcher.acquire(list(offsets), points, count, self.now_s)

    def take(self, member: str = "m", records_max: int = 1) -> list[int]:
        return [record.offset for record in self.take_records(member, records_max)]

    def take_records(self, member: str = "m", records_max: int = 1) -> list[HeldRecord]:
        return self.dispatcher.take(member, records_max, self.now_s)

    def say(self, kind: int, *offsets: int, member: str = "m") -> int | None:
        """A member's acknowledgement; None: it waits for the broker."""
        batches = [AckBatch(offset, offset, bytes((kind,))) for offset in offsets]
        return self.dispatcher.acknowledge(member, batches, self.now_s, self._over)

    def _over(self, ticket: AckTicket) -> None:
        self.codes.append(ticket.error_code)

    def confirm(self) -> list[AckBatch]:
        """The broker takes all outcomes; return them."""
        acks = self.dispatcher.next_acks()
        self.dispatcher.acked(acks, self.now_s)
        self.dispatcher.check()
        return acks

    def lose_session(self) -> None:
        self.dispatcher.lose_all(self.now_s)
        self.dispatcher.check()

    def settle(self) -> None:
        self.dispatcher.settle(self.now_s)
        self.dispatcher.check()

    def fetch_nothing(self, times: int = 2) -> list[int]:
        """Empty fetches, long after; return the offsets that count as archived."""
        self.now_s += 10.0
        found = []
        for _ in range(times):
            found += self.dispatcher.fetched(self.now_s, None, self.now_s)
        self.dispatcher.check()
        return [record.offset for record in found]
