"""Lowest and highest answer that OffsetFetch may have, by the commits of its lane.

In:    all commits of one lane, where its log was cut.  Out: the lowest and the farthest offset.

A lane's offset is a register: a commit writes it, an answer reads it. What is concurrent may take
effect in any order between its request and its answer, so a commit counts as overwritten only by
an acknowledged one that began after it had ended, and ended before the question. A commit without
an answer may take effect late, but no more once its member, or a later generation, has committed
again: brokers take the requests of a connection in order, and refuse old generations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from tests.long.chaos_history import Answer, Commit, Cut

LONGEST_COMMIT_S = 300.0
"""No client waits longer for an answer."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The lowest offset that may be answered, and the commit that asks for it."""

    offset: int
    commit: Commit | None


NO_FLOOR = Floor(-1, None)


class CommitFloor:
    """Answers for one lane; its commits are looked at once."""

    def __init__(
        self,
        commits: Iterable[Commit],
        cuts: Sequence[Cut] = (),
        *,
        old_since_s: Callable[[Commit], float] = lambda _: inf,
    ) -> None:
        """old_since_s: of commits behind a record that is in a log no more: when it was there."""
        self._cuts, self._old_since_s = cuts, old_since_s
        self._commits = sorted(
            (each for each in commits if not each.is_refused), key=lambda each: each.asked_s
        )
        self._by_offset = sorted(self._commits, key=lambda each: each.offset, reverse=True)
        self._asked_s = [each.asked_s for each in self._commits]
        self._farthest = list(accumulate((each.offset for each in self._commits), max))
        acknowledged = sorted(
            (each for each in self._commits if each.is_acknowledged),
            key=lambda each: each.answered_s,
        )
        self._answered_s = [each.answered_s for each in acknowledged]
        self._barriers_s: list[float] = []
        """Latest request time of commits answered until then, by place in `_answered_s`."""
        for each in acknowledged:
            before_s = self._barriers_s[-1] if self._barriers_s else -inf
            self._barriers_s.append(max(before_s, each.asked_s))
        self._unanswered = [
            (each, _over_s(each, acknowledged)) for each in self._commits if each.answered_s == inf
        ]

    def floor(self, answer: Answer) -> Floor:
        """The lowest that a register could hold for this reader, cuts of the log considered."""
        if not bisect_left(self._answered_s, answer.asked_s):
            return NO_FLOOR  # nothing is known to be written: it may hold nothing
        floors = [Floor(self._kept(each, answer), each) for each in self._current(answer)]
        return min(floors, key=lambda each: each.offset)

    def stands(self, answer: Answer) -> int:
        """The farthest that the register could hold for this reader, as it was said; -1: nothing.

        Whatever log it was said of.
        """
        return max((each.offset for each in self._current(answer)), default=-1)

    def reach(self, answer: Answer) -> int:
        """The farthest that anyone tried to commit, less what was cut since; -1: nowhere."""
        if not self._cuts:
            return self.said(answer)
        farthest = -1
        for each in self._by_offset:
            if each.offset <= farthest:
                break
            if each.asked_s < answer.answered_s:
                farthest = max(farthest, self._surely_kept(each, answer))
        return farthest

    def said(self, answer: Answer) -> int:
        """The farthest that anyone tried to commit, in whatever log; -1: nowhere."""
        last = bisect_left(self._asked_s, answer.answered_s)
        return self._farthest[last - 1] if last else -1

    def _current(self, answer: Answer) -> list[Commit]:
        """The commits of which one is in the register, if any is."""
        count = bisect_left(self._answered_s, answer.asked_s)
        barrier_s = self._barriers_s[count - 1] if count else -inf
        last = bisect_left(self._asked_s, answer.answered_s)
        first = bisect_left(self._asked_s, barrier_s - LONGEST_COMMIT_S)
        current = [each for each in self._commits[first:last] if barrier_s <= each.answered_s < inf]
        return current + [
            each
            for each, over_s in self._unanswered
            if each.asked_s < answer.answered_s and over_s >= answer.asked_s
        ]

    def _kept(self, commit: Commit, answer: Answer) -> int:
        """Return a commit's offset after all cuts that may have come between."""
        cuts = (
            cut.offset
            for cut in self._cuts
            if cut.end_s > commit.asked_s and cut.begin_s < answer.answered_s
        )
        return min(commit.offset, min(cuts, default=commit.offset))

    def _surely_kept(self, commit: Commit, answer: Answer) -> int:
        """Return a commit's offset after only those cuts that surely came between."""
        old_since_s = self._old_since_s(commit)
        cuts = (
            cut.offset
            for cut in self._cuts
            if cut.end_s < answer.asked_s
            and (cut.begin_s > commit.answered_s or cut.end_s > old_since_s)
        )
        return min(commit.offset, min(cuts, default=commit.offset))


def _over_s(commit: Commit, acknowledged: Sequence[Commit]) -> float:
    """Return when an unanswered commit can no longer take effect; inf: it always can."""
    return min(
        (
            later.answered_s
            for later in acknowledged
            if later.asked_s > commit.asked_s
            and (later.member == commit.member or later.generation > commit.generation)
        ),
        default=inf,
    )
