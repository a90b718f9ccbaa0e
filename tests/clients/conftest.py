"""The real Kafka and keylane of the integration tests, for clients of other languages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.clients.builds import ClientMissing, find_member
from tests.integration.conftest import (
    admin,
    broker,
    java,
    kafka,
    keylane,
    pytest_configure,
    pytest_unconfigure,
    topic,
)

__all__ = (
    "admin",
    "broker",
    "java",
    "kafka",
    "keylane",
    "pytest_configure",
    "pytest_unconfigure",
    "topic",
)

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
            item.add_marker(pytest.mark.timeout(1200))  # a first one builds


@pytest.fixture
def member_of() -> Callable[[str], Sequence[str]]:
    """Return the command of a client's member; what the machine lacks skips the test."""

    def find(client: str) -> Sequence[str]:
        try:
            return find_member(client)
        except ClientMissing as reason:
            pytest.skip(f"{client}: {reason}")

    return find
