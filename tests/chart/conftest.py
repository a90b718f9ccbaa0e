"""Helm for the tests of the chart, and each set of values rendered once."""

from __future__ import annotations

import pytest

from .rendering import VALUE_SETS, Object, Renderer


@pytest.fixture(scope="session")
def chart() -> Renderer:
    """The chart; skips where there is no Helm."""
    return Renderer()


@pytest.fixture(scope="session", params=VALUE_SETS, ids=lambda path: path.stem)
def rendered(request: pytest.FixtureRequest, chart: Renderer) -> list[Object]:
    """The objects of one set of values of ci/."""
    return chart.template(request.param)
