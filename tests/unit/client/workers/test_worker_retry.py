"""Times of further attempts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.client.workers.retry import NO_RETRY, Retry
from keylane.errors import ConfigInvalid


def test_pauses_grow_by_the_factor_up_to_their_bound():
    """Without jitter the pauses are 1, 3, 9 and then the bound."""
    retry = Retry(backoff_s=1, multiplier=3, backoff_max_s=20, jitter=0)

    assert [retry.pause_s(attempts) for attempts in (1, 2, 3, 4, 10_000)] == [1, 3, 9, 20, 20]


@given(st.integers(1, 100), st.floats(0, 1), st.integers(0, 9))
def test_jitter_stays_within_its_part(attempts: int, jitter: float, start: int):
    """A pause is off by the jitter's part at most, and the same start gives the same pauses."""
    one, other = (Retry(jitter=jitter, jitter_start=start) for _ in range(2))
    plain_s = Retry(jitter=0).pause_s(attempts)

    pause_s = one.pause_s(attempts)

    assert plain_s * (1 - jitter) <= pause_s <= plain_s * (1 + jitter) + 1e-9
    assert other.pause_s(attempts) == pause_s


def test_end_of_the_attempts():
    """Attempts end by their number, or by an error that another one does not mend."""
    retry = Retry(attempts=3, give_up_on=(ValueError,))

    assert not retry.is_over(2, OSError())
    assert retry.is_over(3, OSError())
    assert retry.is_over(1, UnicodeError())  # a ValueError
    assert NO_RETRY.is_over(1, OSError())


@pytest.mark.parametrize(
    "field",
    [
        {"attempts": 0},
        {"backoff_s": -1},
        {"backoff_max_s": 0.1},
        {"multiplier": 0.5},
        {"jitter": 1.1},
    ],
)
def test_fields_out_of_bounds(field: Any):
    """A field out of its bounds is refused by name."""
    with pytest.raises(ConfigInvalid, match=f"retry.{next(iter(field))}"):
        Retry(**field)
