"""Records that a member gets ahead of its polls, where its acquire mode allows them.

Source: KIP-1206: in the mode `batch_optimized` the number of records is a wish; docs/decisions/048.

Theory. Most members acknowledge with the poll that asks for more, and stand still until a broker
has written that. A member with records for several polls acknowledges one poll while it works on
the next, so that it stands still once for all of them. Its keys wait for as long, so it gets no
more than it works off in half a second, or one poll. A member that asks while it has records
fetches ahead by itself: its requests say nothing of its work.

At the end of the log no record may wait at a member while another one has nothing to do. There each
gets its part of what is left, and one poll at most.
"""

from __future__ import annotations

from math import ceil
from typing import Final

AHEAD_S: Final = 0.5
"""Seconds of work that a member gets at a time, where a poll of it has less."""
POLLS_MAX: Final = 8
"""Polls that a member gets at a time."""


def part_of_rest(ready: int, out: int, members: int) -> int:
    """Return a member's part of the work that is left; of what is at members half is done."""
    return -(-(2 * ready + out) // (2 * members))


class Pace:
    """Use: `ask` for each request, then `give` if it gets records."""

    __slots__ = ("_given", "_given_s", "_polls")

    def __init__(self) -> None:
        self._given, self._given_s, self._polls = 0, 0.0, 1

    def ask(self, records_max: int, now_s: float, *, is_free: bool) -> int:
        """Return the number of records for a member. is_free: it has worked off what it had."""
        if not is_free:
            self._given, self._polls = 0, 1
        elif self._given and records_max > 0:
            poll_s = (now_s - self._given_s) / self._given * records_max
            wanted = ceil(AHEAD_S / poll_s) if poll_s * POLLS_MAX > AHEAD_S else POLLS_MAX
            self._polls = min(wanted, 2 * self._polls)
            self._given = 0
        return records_max * self._polls

    def give(self, count: int, now_s: float) -> None:
        """Note that the member got records."""
        self._given, self._given_s = count, now_s
