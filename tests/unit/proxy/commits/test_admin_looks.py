"""proxy/commits/admin_looks.py: what an operator's action asks of Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from keylane.errors import UpstreamLost
from keylane.proxy.commits.admin_looks import find_offsets

TOPICS = {f"t{number}": uuid.UUID(int=number + 1) for number in range(500)}


class Leaders:
    """A cluster of two brokers: even partitions are led by one, odd ones by the other."""

    def __init__(self) -> None:
        self.refreshed: list[set[str]] = []
        self.asked: list[int] = []
        self.errors: dict[str, ErrorCode] = {}
        self.leaders = {
            (topic_id, partition): (partition % 2, 0)
            for topic_id in TOPICS.values()
            for partition in range(4)
        }
        self.registry = SimpleNamespace(id_of_name=TOPICS.get)

    async def refresh_topics(self, names: Collection[str]) -> None:
        self.refreshed.append({*names})

    async def ask_broker(self, node_id: int, entity: Any) -> Any:
        self.asked.append(node_id)
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    name=topic.name,
                    partitions=[
                        SimpleNamespace(
                            partition_index=entry.partition_index,
                            error_code=self.errors.get(topic.name, ErrorCode.none),
                            offset=100 + entry.partition_index,
                        )
                        for entry in topic.partitions
                    ],
                )
                for topic in entity.topics
            ]
        )


async def test_many_topics_cost_a_question_to_each_leader() -> None:
    """And one for the leaders: one for each topic would take too long over a slow line."""
    cluster: Any = Leaders()
    places = [(name, partition) for name in TOPICS for partition in range(4)]

    found = await find_offsets(cluster, places, -1)

    assert found == {(name, partition): 100 + partition for name, partition in places}
    assert cluster.refreshed == [TOPICS.keys()]
    assert sorted(cluster.asked) == [0, 1]


@pytest.mark.parametrize("change", ["error", "no leader", "no topic"])
async def test_a_log_that_is_not_known_is_named(change) -> None:
    """Nothing is made up for it."""
    cluster: Any = Leaders()
    if change == "error":
        cluster.errors["t7"] = ErrorCode.not_leader_or_follower
    if change == "no leader":
        cluster.leaders[TOPICS["t7"], 2] = -1, 0
    name = "gone" if change == "no topic" else "t7"

    with pytest.raises(UpstreamLost, match=f"topic {name} partition 2"):
        await find_offsets(cluster, [("t6", 1), (name, 2)], -1)
