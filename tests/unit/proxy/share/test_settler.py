"""The proof that a session holds all, of a group that had no written state when it settled."""

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
    monkeypatch: pytest.MonkeyPatch, answers: list[Progress], *, held: range
) -> tuple[Settler, Iterator[Any]]:
    """A settler that holds a part of the log, of a coordinator that repeats its last answer."""
    dispatcher = Dispatcher()
    dispatcher.acquire(list(held), list(held), 1, 0.0)
    said = itertools.chain(answers, itertools.repeat(answers[-1]))
    times = itertools.count(0.0, 0.4)

    async def ask(*_: Any) -> Progress:
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
