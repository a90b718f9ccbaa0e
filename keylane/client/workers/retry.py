"""Times of further attempts: back-off that grows by a factor, with jitter.

Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015; KIP-580 (20 % of jitter).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from keylane.errors import ConfigInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Number and times of the attempts at a record.

    Before attempt n + 1 its key waits `backoff_s * multiplier ** (n - 1)`, at most
    `backoff_max_s`, times a factor drawn from 1 - jitter to 1 + jitter. Other keys go on.

    Raises: ConfigInvalid naming the field.
    """

    attempts: int = 5
    """In all, the first included."""
    backoff_s: float = 0.5
    """Seconds that a key waits before its second attempt."""
    backoff_max_s: float = 30.0
    """Seconds that it waits at most, before jitter."""
    multiplier: float = 2.0
    """Of the wait, from attempt to attempt."""
    jitter: float = 0.2
    """0 to 1; KIP-580 takes 0.2."""
    give_up_on: tuple[type[Exception], ...] = ()
    """Errors after which another attempt is of no use; the first one is the last."""
    jitter_start: int | None = None
    """Start of the random numbers; None: by chance. The same start gives the same times."""
    _random: random.Random = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, is_good in (
            ("attempts", self.attempts >= 1),
            ("backoff_s", self.backoff_s >= 0),
            ("backoff_max_s", self.backoff_max_s >= self.backoff_s),
            ("multiplier", self.multiplier >= 1),
            ("jitter", 0 <= self.jitter <= 1),
        ):
            if not is_good:
                raise ConfigInvalid(f"retry.{name}: {getattr(self, name)} is out of bounds")
        object.__setattr__(self, "_random", random.Random(self.jitter_start))

    def is_over(self, attempts: int, error: Exception) -> bool:
        """Return whether `attempts` failed attempts, the last one with `error`, are enough."""
        return attempts >= self.attempts or isinstance(error, self.give_up_on)

    def pause_s(self, attempts: int) -> float:
        """Return the time that a key waits after so many failed attempts, at least 1."""
        pause_s, last = self.backoff_s, attempts - 1
        while last > 0 and pause_s < self.backoff_max_s and self.multiplier > 1:
            pause_s, last = pause_s * self.multiplier, last - 1
        pause_s = min(pause_s, self.backoff_max_s)
        return pause_s * (1 + self.jitter * (2 * self._random.random() - 1))


NO_RETRY = Retry(attempts=1)
