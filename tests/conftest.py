"""What every test shares: Hypothesis profiles, a seed that can be repeated, and long forms."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the first call of a kernel compiles it, which takes a second, not 200 ms.
settings.register_profile("dev", deadline=None, print_blob=True)
# CI repeats the same examples, so that a red run is red for everybody: half of the number that each
# run of `make check` draws anew. `nightly` looks further.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, max_examples=50)
settings.register_profile(
    "nightly",
    deadline=None,
    print_blob=True,
    max_examples=5_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Put back the levels that a command sets for its process: the next test counts lines."""
    loggers = [logging.getLogger(name) for name in ("keylane", "aiokafka")]
    before = [(one, one.level, one.propagate, list(one.handlers)) for one in loggers]
    yield
    for one, level, propagate, handlers in before:
        one.setLevel(level)
        one.propagate, one.handlers = propagate, handlers


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`."""
    parser.addoption("--long", action="store_true", help="run what is marked `long` too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `long`, so that CI ends in half an hour on two cores."""
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("long")]
