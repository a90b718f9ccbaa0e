"""The journal's topic on a cluster whose brokers learn of it one after the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keylane.errors import UpstreamLost
from keylane.journal import journal_topic
from keylane.journal.journal_topic import PRIMARY_TOPIC, ensure_journal_topic, ensure_topic
from keylane.offsets.records.journal import TOPIC_NAME as TOPIC

UNKNOWN_TOPIC, TOPIC_EXISTS, REFUSED = 3, 36, 29


class LaggingAdmin:
    """An admin client; the first requests of a kind about the journal meet brokers without it."""

    def __init__(self, *, describe_lag: int = 0, alter_lag: int = 0, refusal: int = 0) -> None:
        self.settings = {PRIMARY_TOPIC: "compact"}
        self.created: list[Any] = []
        self.altered: list[dict[str, str]] = []
        self._lags = {"describe": describe_lag, "alter": alter_lag}
        self._refusal = refusal

    def _code(self, kind: str) -> int:
        self._lags[kind] -= 1
        return UNKNOWN_TOPIC if self._lags[kind] >= 0 else 0

    async def describe_topics(self) -> list[dict[str, Any]]:
        """Every topic with five partitions."""
        partitions = [{"leader": 1, "replicas": [1, 2, 3]}] * 5
        return [{"topic": t, "error_code": 0, "partitions": partitions} for t in self.settings]

    async def describe_configs(self, resources: list[Any]) -> list[Any]:
        """One answer, as aiokafka gives it."""
        name = resources[0].name
        code = self._refusal or (self._code("describe") if name == TOPIC else 0)
        reported = [("min.insync.replicas", "1"), ("cleanup.policy", self.settings[name])]
        return [SimpleNamespace(resources=[(code, None, 2, name, [] if code else reported)])]

    async def create_topics(self, topics: list[Any]) -> Any:
        """Takes effect at once on the broker that lists topics."""
        self.created += topics
        self.settings[topics[0].name] = "compact"
        return SimpleNamespace(topic_errors=[(topics[0].name, TOPIC_EXISTS, None)])

    async def alter_configs(self, resources: list[Any]) -> list[Any]:
        """Remembers what it was asked."""
        code = self._code("alter")
        if not code:
            self.altered.append(resources[0].configs)
        return [SimpleNamespace(resources=[(code, None)])]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between two attempts."""
    monkeypatch.setattr(journal_topic, "RETRY_BACKOFF_S", 0)


async def test_a_broker_that_learns_of_the_topic_later_is_asked_again() -> None:
    """Any broker may be asked to describe it, also one that does not know it yet: not an error."""
    admin = LaggingAdmin(describe_lag=3)

    assert await ensure_journal_topic(admin) == 5
    assert [topic.name for topic in admin.created] == [TOPIC]


async def test_a_topic_with_other_settings_is_repaired_by_whatever_broker_knows_it() -> None:
    """Its settings are put right, although the first brokers asked do not know the topic."""
    admin = LaggingAdmin(alter_lag=2)
    admin.settings[TOPIC] = "delete"

    assert await ensure_journal_topic(admin) == 5
    assert [settings["cleanup.policy"] for settings in admin.altered] == ["compact"]


async def test_a_topic_for_news_is_made_and_repaired_as_such() -> None:
    """Its records are deleted soon; one that a broker made by itself is put right."""
    admin = LaggingAdmin()
    short = {"cleanup.policy": "delete", "retention.ms": "600", "segment.bytes": "1000"}

    _, shape = await ensure_topic(admin, TOPIC, short, 1)

    assert shape.partition_count == 5
    (created,) = admin.created
    assert (created.num_partitions, created.replication_factor) == (1, 3)
    wanted = short | {"min.insync.replicas": "1"}
    assert created.topic_configs == wanted
    assert admin.altered == [wanted], "the fake's broker made it compacted"


async def test_a_refusal_is_reported_and_not_waited_out() -> None:
    """A broker that may not be asked ends the start with its reason."""
    with pytest.raises(UpstreamLost, match="describing __consumer_offsets: TopicAuthorization"):
        await ensure_journal_topic(LaggingAdmin(refusal=REFUSED))
