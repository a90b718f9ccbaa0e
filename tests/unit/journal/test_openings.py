"""Which epoch the journal is opened with, and when with none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9.request import MetadataRequest

from keylane.errors import ConfigInvalid, NotCoordinator, RightMissing, UpstreamLost
from keylane.journal import journal_reads, openings
from keylane.journal.openings import ALL, JournalOpener, opened_at_start


class Brokers:
    """Implements `epochs.Brokers`: the coordinator hangs at first, then gives epochs."""

    def __init__(self, topic: ErrorCode) -> None:
        """topic: what metadata says of the topic of transactions."""
        self.topic, self.asked = topic, 0

    async def request(self, entity: Any) -> Any:
        if isinstance(entity, MetadataRequest):
            return SimpleNamespace(topics=(SimpleNamespace(error_code=self.topic),))
        return SimpleNamespace(error_code=ErrorCode.none, node_id=3)

    async def ask_broker(self, _node_id: int, _entity: Any) -> Any:
        self.asked += 1
        if self.asked == 1:
            await asyncio.Event().wait()
        return SimpleNamespace(error_code=ErrorCode.none, producer_id=40, producer_epoch=7)

    async def learn_brokers(self, brokers: Any) -> None:
        pass


def make_opener(brokers: Brokers) -> JournalOpener:
    """One that opens nothing in these tests."""
    store: Any = None
    return JournalOpener(
        store=store, brokers=brokers, individual_commits_max=1, wall_clock=lambda: 0.0,
        writes_steps=lambda: True,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "EPOCH_PATIENCE_S", 0.01)


async def test_a_coordinator_that_hangs_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Without an epoch, what the last process had under way could come behind this one's."""
    epoch = await make_opener(Brokers(ErrorCode.none))._epoch(ALL)

    assert epoch == (40, 7)
    assert not caplog.records


async def test_a_cluster_without_transactions_gives_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its topic could not be made, and the log says what to do."""
    brokers = Brokers(ErrorCode.unknown_topic_or_partition)

    assert await make_opener(brokers)._epoch(ALL) is None
    assert brokers.asked == 1
    assert "transaction.state.log.replication.factor" in caplog.text


class Owned:
    """Fails with each of these errors, then gives a holding."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def ready(self, _group: str) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return "holding"


async def test_a_start_opens_the_journal_over_lost_brokers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try logs its reason; a missing right ends the start with what to grant."""
    monkeypatch.setattr(journal_reads, "PAUSE_S_MIN", 0.0001)
    lost: Any = Owned(UpstreamLost("gone"), NotCoordinator("taken over"))
    denied: Any = Owned(RightMissing("transactional id keylane-all: DENIED"))

    opened: object = await opened_at_start(lost)
    assert opened == "holding"
    with pytest.raises(ConfigInvalid, match="needs DESCRIBE and WRITE on transactional ids"):
        await opened_at_start(denied)

    reasons = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert [str(reason) for reason in reasons] == [
        "opening the journal: gone", "opening the journal: taken over"
    ]  # fmt: skip
