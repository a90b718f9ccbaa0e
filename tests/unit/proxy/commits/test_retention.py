"""How long brokers keep offsets: asked of each of them, the least counts."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from kio.index import load_response_schema

from keylane.errors import UpstreamLost
from keylane.proxy.commits.refreshes import Refreshes, ask_retention, follow_retention
from keylane.tasks import spawn
from tests.transcript.entities import build

DESCRIBE_CONFIGS = 32


class FakeCluster:
    """Brokers that say a value, refuse (None), or cannot be reached (an error)."""

    def __init__(self, *said: str | UpstreamLost | None) -> None:
        self.brokers = dict(enumerate(said, 1))

    async def ask_broker(self, node_id: int, entity: Any) -> Any:
        (resource,) = entity.resources
        assert (resource.resource_type, resource.resource_name) == (4, str(node_id))
        said = self.brokers[node_id]
        if isinstance(said, UpstreamLost):
            raise said
        configs = [{"name": resource.configuration_keys[0], "value": said}] if said else []
        result = {"error_code": 0 if said else 31, "configs": configs}
        schema = load_response_schema(DESCRIBE_CONFIGS, int(entity.__version__))
        return build(schema, {"results": [result]})


async def test_the_least_of_all_brokers_counts() -> None:
    """A rolling change of the value; a broker that is away, or does not say, is left out."""
    said = FakeCluster("10080", UpstreamLost("away"), "60", None)
    silent = FakeCluster(None, "soon")

    assert await ask_retention(said) == 3600.0  # type: ignore[arg-type]
    assert await ask_retention(silent) is None  # type: ignore[arg-type]


async def test_the_turns_of_groups_follow(caplog) -> None:
    """An unknown retention is logged once, with the right that lacks and the key to set."""
    for cluster, interval_s in ((FakeCluster("60"), 900.0), (FakeCluster(None), 43_200.0)):
        refreshes = Refreshes(43_200.0)
        with caplog.at_level(logging.INFO):
            work = follow_retention(cluster, refreshes)  # type: ignore[arg-type]
            following = spawn(work, "follow")
            await asyncio.sleep(0)
            following.cancel()
        assert refreshes.interval_s == interval_s
    assert caplog.text.count("DESCRIBE_CONFIGS") == 1
    assert "offsets_refresh_s" in caplog.text
