"""Schedules in chunks, one test each: a few that CI plays, the others in the long form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.run import play
from tests.simulation.scenario import Scenario


def chunks(schedules: int, of_ci: int, size: int) -> list[Any]:
    """Return parameters: ranges of seeds."""
    return [
        pytest.param(
            range(first, first + size),
            marks=[pytest.mark.long] if first >= of_ci else [],
            id=str(first),
        )
        for first in range(0, schedules, size)
    ]


def failures(draw: Callable[[int], Scenario], seeds: range) -> dict[int, str]:
    """Play; return the first finding of each seed that has any."""
    return {seed: outcome.breaches[0] for seed in seeds if (outcome := play(draw(seed))).breaches}
