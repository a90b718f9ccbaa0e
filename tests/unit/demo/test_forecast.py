"""The verdict's line on the advice: within 15 % of what was seen, in a show that is long enough."""

from __future__ import annotations

import pytest

from keylane.demo.forecast import Seen, check_forecast


@pytest.mark.parametrize(
    ("forecast", "is_judged", "passed"),
    [(4.5, True, True), (4.7, True, False), (3.3, True, False), (3.3, False, True)],
)
def test_the_advice_is_judged_by_fifteen_percent(forecast, is_judged, passed) -> None:
    """Of 4 times; in a short show nothing is judged, and the line says so."""
    seen = Seen(members=8, speedup=4.0, excess=1.05)

    check = check_forecast(forecast, seen, is_judged=is_judged)

    assert check.passed is passed
    assert check.value == f"{forecast:.2f}, 4.00"
    assert check.name.endswith("(too short to judge)") is not is_judged


def test_a_group_whose_lanes_are_still_to_move_is_not_judged() -> None:
    """The advice is for the time after; the busiest member's load is a line by itself."""
    check = check_forecast(4.7, Seen(members=8, speedup=4.0, excess=1.2), is_judged=True)

    assert check.passed
    assert check.name.endswith("(lanes are still to move)")
