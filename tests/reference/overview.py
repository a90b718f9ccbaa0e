"""The overview of a made-up cluster: one broker, and groups as tests list them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from keylane.proxy.cluster.cluster import Broker
from keylane.proxy.control.api.overview import Overview
from keylane.proxy.control.cluster_report import ClusterDescriber, ClusterFacts
from keylane.proxy.control.group_list import GroupLister
from keylane.proxy.control.watch.history import History
from keylane.proxy.control.watch.summary import GroupSummary
from keylane.proxy.runtime.event_log import EventLog

FACTS = ClusterFacts(
    number=None,
    control="127.0.0.1:9100",
    bootstrap="127.0.0.1:9092",
    started_ms=1_000,
    cluster_id="cluster",
    brokers={1: Broker(node_id=1, host="kafka", port=9092, rack=None)},
    away={},
    kafka_away=None,
    membership=None,
    away_nodes=(),
    partition_count=50,
    groups=1,
    disputes={},
    set_aside={},
    resting=(),
    missing=None,
    states={},
)


class FakeOverview:
    """Tests change its parts; the time stands."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.facts = FACTS
        self.listed: list[tuple[str, str, str]] = []
        """Group, type and state, as the broker lists them."""
        self.summaries: dict[str, GroupSummary] = {}
        self.history = History()
        self.event_log = EventLog(self._now_ms)

    def make(self) -> Overview:
        """Return the overview."""
        cluster: Any = SimpleNamespace(
            brokers=self.facts.brokers, versions_of=self._versions, ask_broker=self._ask
        )
        return Overview(
            cluster=ClusterDescriber(lambda: self.facts, self._now_ms),
            groups=GroupLister(cluster, Known(self.summaries), self._now_ms),
            history=self.history,
            event_log=self.event_log,
            now_ms=self._now_ms,
        )

    def change(self, **facts: Any) -> None:
        """Change some facts of the cluster."""
        self.facts = replace(self.facts, **facts)

    def _now_ms(self) -> int:
        return self.now_ms

    async def _versions(self, _node_id: int) -> Mapping[int, int]:
        return {16: 5}

    async def _ask(self, _node_id: int, _request: Any) -> Any:
        groups = [
            SimpleNamespace(
                group_id=group, protocol_type="consumer", group_state=state, group_type=kind
            )
            for group, kind, state in self.listed
        ]
        return SimpleNamespace(error_code=ErrorCode.none, groups=groups)


class Known:
    """What a node knows of groups: those that were sampled, all of them here."""

    def __init__(self, summaries: Mapping[str, GroupSummary]) -> None:
        self._summaries = summaries

    def summaries(self) -> Mapping[str, GroupSummary]:
        """See `group_list.Knowledge`."""
        return self._summaries

    def lane_groups(self) -> frozenset[str]:
        """See `group_list.Knowledge`."""
        return frozenset(self._summaries)

    def node_of(self, _group: str) -> str | None:
        """See `group_list.Knowledge`."""
        return None
