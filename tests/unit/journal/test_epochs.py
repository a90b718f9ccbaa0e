"""Producer epochs: asked of the transaction's coordinator until it gives one."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.errors import RightMissing, UpstreamLost
from keylane.journal import epochs
from keylane.journal.epochs import has_transactions, next_epoch


class Brokers:
    """Implements `Brokers`: answers as a test says, in order."""

    def __init__(self, found: list[ErrorCode], given: list[ErrorCode]) -> None:
        self.found, self.given = deque(found), deque(given)
        self.asked: list[Any] = []
        self.learnt: list[Any] = []

    async def request(self, entity: Any) -> Any:
        self.asked.append(entity)
        return SimpleNamespace(error_code=self.found.popleft(), node_id=3, host="b", port=9)

    async def ask_broker(self, node_id: int, entity: Any) -> Any:
        assert node_id == 3
        self.asked.append(entity)
        return SimpleNamespace(error_code=self.given.popleft(), producer_id=40, producer_epoch=7)

    async def learn_brokers(self, brokers: Any) -> None:
        self.learnt += brokers


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "RETRY_BACKOFF_S", 0.0)


async def test_the_coordinator_gives_the_next_one() -> None:
    """Of the transactional id, not of a group of that name."""
    brokers = Brokers([ErrorCode.none], [ErrorCode.none])

    assert await next_epoch(brokers, "keylane-ic-4") == (40, 7)

    find, init = brokers.asked
    assert (find.key, find.key_type) == ("keylane-ic-4", 1)
    assert (init.transactional_id, init.transaction_timeout) == (
        "keylane-ic-4",
        timedelta(seconds=10),
    )
    assert [broker.node_id for broker in brokers.learnt] == [3]


async def test_it_asks_again_while_a_coordinator_is_not_ready() -> None:
    """Both to find it, and to be given an epoch."""
    none = ErrorCode.none
    brokers = Brokers(
        [ErrorCode.coordinator_not_available, none, none, none],
        [ErrorCode.concurrent_transactions, ErrorCode.not_coordinator, none],
    )

    assert await next_epoch(brokers, "t") == (40, 7)


async def test_a_refusal_is_reported() -> None:
    """The error has its name, and the id that lacks a right."""
    refused = ErrorCode.transactional_id_authorization_failed
    with pytest.raises(RightMissing, match=r"keylane-ic-4: transactional_id_authorization_failed"):
        await next_epoch(Brokers([ErrorCode.none], [refused]), "keylane-ic-4")


async def test_a_coordinator_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last reason is reported."""
    monkeypatch.setattr(epochs, "TIMEOUT_S", 0.01)
    brokers = Brokers([], [])
    brokers.found = deque([ErrorCode.coordinator_not_available] * 1_000_000)

    with pytest.raises(UpstreamLost, match=r"coordinator_not_available for 0\.01 s"):
        await next_epoch(brokers, "t")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.none, True),
        (ErrorCode.leader_not_available, True),
        (ErrorCode.topic_authorization_failed, True),
        (ErrorCode.unknown_topic_or_partition, False),
    ],
)
async def test_only_a_topic_that_is_not_there_means_no_transactions(
    code: ErrorCode, expected: bool
) -> None:
    """One that has no leader now, or may not be seen, is there; asking makes no topic."""

    class Reported:
        async def request(self, entity: Any) -> Any:
            assert [topic.name for topic in entity.topics] == ["__transaction_state"]
            assert not entity.allow_auto_topic_creation
            return SimpleNamespace(topics=(SimpleNamespace(error_code=code),))

    assert await has_transactions(Reported()) is expected  # type: ignore[arg-type]
