"""proxy/share/settler.py: groups that have no written state when they settle."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from keylane.proxy.share import settler as module
from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.settler import Settler
from keylane.proxy.share.settling import UNKNOWN, Progress
from keylane.share.dispatcher import Dispatcher

PLACE = SharedPlace("billing", "orders", uuid.UUID(int=7), 0)
LOG_END = 10


class Session:
    """keylane's session at a leader whose log ends at `LOG_END`."""

    async def log_end(self) -> int:
        """Return it."""
        return LOG_END


def settler_of(
    monkeypatch: pytest.MonkeyPatch, answers: list[Progress], *, held: range, took: int = 0
) -> tuple[Settler, Iterator[Any]]:
    """A settler that holds a part of the log, of a coordinator that repeats its last answer.

    took: time of each answer, in steps of the clock of 0.4 s.
    """
    dispatcher = Dispatcher()
    dispatcher.acquire(list(held), list(held), 1, 0.0)
    said = itertools.chain(answers, itertools.repeat(answers[-1]))
    times: Iterator[float] = itertools.count(0.0, 0.4)

    async def ask(*_: Any) -> Progress:
        for _step in range(took):
            next(times)
        return next(said)

    monkeypatch.setattr(module, "ask_progress", ask)
    unused: Any = None
    return Settler(unused, PLACE, dispatcher, unused, unused, lambda: next(times)), times


async def test_a_session_that_holds_all_is_proven_at_once(monkeypatch) -> None:
    """What is finished is counted by the coordinator a moment later: it is asked again."""
    late = [Progress(0, LOG_END), Progress(4, 6)]
    settler, _ = settler_of(monkeypatch, late, held=range(4, LOG_END))

    is_alone = await settler.prove(Session())  # type: ignore[arg-type]

    assert (is_alone, settler.is_proven) == (True, True)


async def test_an_answer_that_took_long_is_not_the_last_word(monkeypatch) -> None:
    """A new broker takes more than a second, and its first answer says what was before."""
    late = [Progress(0, LOG_END), Progress(LOG_END, 0)]
    settler, _ = settler_of(monkeypatch, late, held=range(0), took=4)
    settler._dispatcher.end_offset = LOG_END - 1

    is_alone = await settler.prove(Session())  # type: ignore[arg-type]

    assert (is_alone, settler.is_proven) == (True, True)


async def test_members_beside_keylane_are_found_after_a_second(monkeypatch) -> None:
    """They hold four records, and the coordinator goes on saying so."""
    settler, times = settler_of(monkeypatch, [Progress(0, LOG_END)], held=range(4, LOG_END))

    is_alone = await settler.prove(Session())  # type: ignore[arg-type]

    assert (is_alone, settler.is_proven) == (False, True)
    assert next(times) > module.PROVE_S_MAX


async def test_nothing_is_said_of_a_group_without_a_written_state(monkeypatch) -> None:
    """The question stays open, to be asked again."""
    settler, _ = settler_of(monkeypatch, [Progress(UNKNOWN, -1)], held=range(LOG_END))

    is_alone = await settler.prove(Session())  # type: ignore[arg-type]

    assert (is_alone, settler.is_proven) == (True, False)


class Intake:
    """Fetches of a new session: nothing, `silent` times, and then all records that were lost."""

    def __init__(self, dispatcher: Dispatcher, silent: int) -> None:
        self._dispatcher, self.silent = dispatcher, silent

    async def fetch(self, _session: Any, _count: int) -> None:
        """Take what the broker gives; each is the first delivery, as none was written."""
        self.silent -= 1
        if self.silent < 0:
            lost = sorted(self._dispatcher.gone)
            self._dispatcher.acquire(lost, lost, 1, 0.0)


class Confirmations:
    """The broker has no lock that could be released."""

    async def release(self, _session: Any, _first: int, _last: int) -> bool:
        """Return whether it had."""
        return False


def broken_settler(monkeypatch: pytest.MonkeyPatch, silent: int) -> tuple[Settler, Dispatcher]:
    """A settler whose session held the log, of a group of which nothing was ever written."""
    answers = [Progress(UNKNOWN, -1)]
    settler, _ = settler_of(monkeypatch, answers, held=range(LOG_END))
    dispatcher = settler._dispatcher
    dispatcher.lose_all(0.0)
    assert len(dispatcher.gone) == LOG_END
    settler._intake = Intake(dispatcher, silent)  # type: ignore[assignment]
    settler._confirmations = Confirmations()  # type: ignore[assignment]
    settler.delivery_limit = 5
    return settler, dispatcher


async def test_a_broker_that_is_slow_to_give_records_again_has_not_finished_them(
    monkeypatch,
) -> None:
    """It was killed before it had written anything, and its first answer brings nothing."""
    settler, dispatcher = broken_settler(monkeypatch, silent=1)

    is_sure = await settler.settle(Session(), 100, lambda: False)  # type: ignore[arg-type]

    assert is_sure and dispatcher.locked_count == LOG_END
    assert dispatcher.settle(0.0) == []


async def test_records_that_do_not_come_again_are_not_waited_for_without_end(monkeypatch) -> None:
    """Members beside keylane may hold them: after `SETTLE_S_MAX` that is reported."""
    settler, dispatcher = broken_settler(monkeypatch, silent=1_000)

    is_sure = await settler.settle(Session(), 100, lambda: False)  # type: ignore[arg-type]

    assert not is_sure and not settler.is_proven
    assert len(dispatcher.gone) == LOG_END
