"""A start goes on when connections are lost, for as long as is documented; losses have names."""

from __future__ import annotations

from collections import deque

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnsupportedVersionError,
)

from keylane.errors import RightMissing, UpstreamLost
from keylane.journal import journal_reads as loads
from keylane.journal import store
from keylane.journal.journal_reads import describe_loss, timed_append, tried_again
from keylane.journal.own_topic import OwnTopicClients
from keylane.journal.store import JournalStore


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "PAUSE_S_MIN", 0.0001)


class Attempts:
    """Fails with each of these, then gives its number."""

    def __init__(self, *errors: KafkaError) -> None:
        self.errors, self.count = deque(errors), 0

    async def __call__(self) -> int:
        self.count += 1
        if self.errors:
            raise self.errors.popleft()
        return self.count


async def test_a_lost_connection_is_tried_again(caplog) -> None:
    """Each try logs its reason."""
    lost = KafkaConnectionError("Connection at broker:9092 closed")

    assert await tried_again("loading", Attempts(lost, lost, lost)) == 4
    assert caplog.text.count("loading: KafkaConnectionError") == 3


async def test_what_another_try_does_not_change_is_reported_at_once() -> None:
    """A missing right by its kind."""
    attempts = Attempts(UnsupportedVersionError("old"))
    with pytest.raises(UpstreamLost, match="loading: UnsupportedVersionError"):
        await tried_again("loading", attempts)
    assert attempts.count == 1

    with pytest.raises(RightMissing, match="TopicAuthorizationFailedError"):
        await tried_again("loading", Attempts(TopicAuthorizationFailedError("t")))


async def test_it_ends_with_the_last_reason() -> None:
    """When the time is over."""
    with pytest.raises(UpstreamLost, match=r"opening: .*gone"):
        await tried_again(
            "opening", Attempts(*[KafkaConnectionError("gone")] * 1000), timeout_s=0.001
        )


async def test_the_journal_is_loaded_over_lost_connections(monkeypatch) -> None:
    """Of the topic's shape and of its records; each try begins with an empty table."""
    tables, lost = [], KafkaConnectionError("closed")
    shape, reads = Attempts(lost), Attempts(lost, lost)

    async def ensure(_store: JournalStore) -> int:
        await shape()
        return 5

    async def read(_clients: object, _numbers: object, table: object) -> None:
        tables.append(table)
        await reads()

    monkeypatch.setattr(JournalStore, "ensure_topic", ensure)
    monkeypatch.setattr(store, "read_partitions", read)

    table = await JournalStore(OwnTopicClients("broker:9092")).read()

    assert table.partition_count == 5
    assert len({id(each) for each in tables}) == 3 and tables[-1] is table


async def test_an_append_is_timed_whether_it_succeeds_or_not() -> None:
    """And its error is passed on."""
    reported: list[tuple[int, bool]] = []

    def note(count: int, seconds: float, is_there: bool) -> None:
        assert seconds >= 0.0
        reported.append((count, is_there))

    async with timed_append(3, note):
        pass
    with pytest.raises(UpstreamLost):
        async with timed_append(4, note):
            raise describe_loss("appending", KafkaConnectionError("gone"))

    assert reported == [(3, True), (4, False)]
