"""Works of share consumers' applications, as their diaries have them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

NO_OUTCOME = -1


@dataclass(eq=False)
class Work:
    """One delivery of a record to an application."""

    member: str
    partition: int
    offset: int
    key: str
    count: int
    asked_s: float
    """When it asked for records; the lock begins then, or later."""
    given_s: float
    lock_end_s: float
    """Time until which the member has the record for sure."""
    start_s: float = inf
    end_s: float = inf
    """End of the work; infinite: there was none."""
    outcome: int = NO_OUTCOME
    ack_s: float = inf
    """When the outcome was sent first."""
    answered_s: float = inf
    code: int | None = None
    """The answer to the outcome."""
    lost_s: float = inf
    """When its session ended before the outcome was answered, or its process died."""
