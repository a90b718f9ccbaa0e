"""Hostile clients at the sockets of a real keylane, some at a time.

In:    a seed, how many inputs.  Out: `SocketTally`: by kind how many, and what went wrong.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.long.hostile_kinds import choose
from tests.long.hostile_talk import Aim

AT_ONCE: Final = 48
STUCK_S: Final = 60.0
"""A connection has no step that waits for longer than 20 s."""
REPORT_EVERY: Final = 20_000
OFFSET: Final = 1 << 39
"""Numbers of connections are beyond those of the parsers' inputs: the chance is another."""


@dataclass(slots=True)
class SocketTally:
    """Results of the connections so far."""

    inputs: Counter[str] = field(default_factory=Counter)
    connections: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Connections in which a sound step was not answered: the login before the hostile part."""
    findings: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Inputs of all kinds."""
        return sum(self.inputs.values())


async def play(
    seed: int, inputs: int, aim: Aim, deadline_s: float, reported: Callable[[str], None]
) -> SocketTally:
    """Connections until there were so many inputs."""
    tally, numbers = SocketTally(), iter(range(OFFSET, 2 * OFFSET))
    reported_at = REPORT_EVERY

    async def one_after_another() -> None:
        nonlocal reported_at
        while tally.total < inputs and time.monotonic() < deadline_s:
            await play_one(seed, next(numbers), aim, tally)
            if tally.total >= reported_at:
                reported_at += REPORT_EVERY
                reported(f"sockets: {tally.total} of {inputs}, {len(tally.findings)} findings")

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_another())
    return tally


async def play_one(seed: int, number: int, aim: Aim, tally: SocketTally) -> None:
    """The connection of this number."""
    rng = random.Random(seed << 40 ^ number)
    kind = choose(rng)
    tally.connections[kind.name] += 1
    try:
        async with asyncio.timeout(STUCK_S):
            count = await kind.play(rng, aim)
        tally.inputs[kind.name] += count
    except ConnectionError:
        tally.lost[kind.name] += 1
    except (OSError, TimeoutError) as error:
        text = f"{kind.name} number {number}: {type(error).__name__}: {error}"
        tally.findings.append(text)
