"""Leaders that are asked where epochs end: one that hangs costs one wait, not one of each group."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from keylane.offsets.lineage import EpochEnd
from keylane.proxy.commits import log_ends
from keylane.proxy.commits.log_ends import LogEnds, Question

ID = uuid.UUID(int=3)
ON_HUNG, ON_OTHER = Question("orders", ID, 0, 4), Question("orders", ID, 1, 4)


class Brokers:
    """Broker 1 leads partition 0 and hangs; broker 2 leads partition 1."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.end = 70
        self.leaders = {(ID, 0): (1, 5), (ID, 1): (2, 5)}
        self.registry = SimpleNamespace(topics={"orders": SimpleNamespace(topic_id=ID)})

    async def refresh_topic(self, name: str) -> None:
        assert name == "orders"

    async def ask_broker(self, node_id: int, _entity: Any) -> Any:
        self.asked.append(node_id)
        if node_id == 1:
            await asyncio.Event().wait()
        entry = SimpleNamespace(
            partition=1, error_code=ErrorCode.none, leader_epoch=4, end_offset=self.end
        )
        return SimpleNamespace(topics=[SimpleNamespace(topic="orders", partitions=[entry])])


async def test_a_leader_that_hangs_is_not_asked_again_at_once(monkeypatch) -> None:
    """What others lead is answered with it and without it; later it is asked once more."""
    now_s = 100.0
    monkeypatch.setattr(log_ends, "ANSWER_S_MAX", 0.05)
    monkeypatch.setattr(log_ends, "time", SimpleNamespace(monotonic=lambda: now_s))
    brokers: Any = Brokers()
    ends = LogEnds(brokers)

    assert await ends.ask([ON_HUNG, ON_OTHER]) == {ON_OTHER: EpochEnd(4, 70)}
    assert await ends.ask([ON_HUNG, ON_OTHER]) == {ON_OTHER: EpochEnd(4, 70)}
    assert brokers.asked == [1, 2]  # what broker 2 has said counts for a moment

    now_s += log_ends.SILENT_S
    assert await ends.ask([ON_HUNG]) == {}
    assert brokers.asked == [1, 2, 1]


async def test_an_answer_counts_for_a_moment_only(monkeypatch) -> None:
    """Another leader may have a shorter log meanwhile, also where no metadata has named it yet."""
    now_s = 100.0
    monkeypatch.setattr(log_ends, "time", SimpleNamespace(monotonic=lambda: now_s))
    brokers: Any = Brokers()
    ends = LogEnds(brokers)
    first = await ends.ask([ON_OTHER])
    brokers.end = 60

    assert await ends.ask([ON_OTHER]) == first == {ON_OTHER: EpochEnd(4, 70)}
    now_s += 2 * log_ends.KNOWN_S

    assert await ends.ask([ON_OTHER]) == {ON_OTHER: EpochEnd(4, 60)}
    assert brokers.asked == [2, 2]
