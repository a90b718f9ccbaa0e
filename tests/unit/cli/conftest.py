"""A made-up control port for each test that asks one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keylane.cli.control_client import CONTROL_VARIABLE
from tests.unit.cli.fake_control import FakeControl, fake_control


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControl]:
    """A control port that commands find by the variable."""
    with fake_control() as server:
        monkeypatch.setenv(CONTROL_VARIABLE, server.address)
        yield server
