"""The cluster as keylane itself knows it: brokers, topics, leaders; its own connections."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from kio.index import load_request_schema
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.metadata.v12.request import MetadataRequestTopic as Topic12
from kio.schema.metadata.v13.request import MetadataRequestTopic as Topic13
from kio.schema.types import TopicName

from keylane.config.node import ProxyConfig
from keylane.errors import ConfigInvalid, KeylaneError, UpstreamLost
from keylane.offsets.lineage import PartitionKey
from keylane.proxy.cluster.broker_links import BrokerLinks, link_of, outcome_of
from keylane.proxy.cluster.lane_plans import load_plans
from keylane.proxy.net.answer_times import Address
from keylane.proxy.net.security.node_security import Security
from keylane.proxy.net.upstream import ServiceLink
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.topics.agreement import LaneMeanings, node_rules
from keylane.proxy.topics.node_values import Membership, NodeInfo, NodeRule
from keylane.proxy.topics.registry import TopicRegistry
from keylane.tasks import spawn
from keylane.wire.header import ApiKey

log = logging.getLogger("keylane.cluster")

DISPUTES_LOGGED_MAX: Final = 20
"""Topics that are named in the log when nodes do not agree; a glob may mean thousands."""
METADATA_VERSION_MIN: Final = 12
"""Asks by topic id (KIP-516); Kafka 3.1 and later."""
METADATA_VERSION_MAX: Final = 13
SEEK_PAUSES_S: Final = (0.0, 0.1, 0.3, 1.0)
"""Before each try to learn of a new leader: brokers have its name a moment after it was elected.
Then it is learnt when the partition is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """One upstream broker as it advertises itself."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Cluster:
    """The service principal's view of the cluster, refreshed on demand.

    Invariant: one of its Metadata requests is under way at most.
    """

    def __init__(
        self,
        config: ProxyConfig,
        stats: ProxyStats | None = None,
        *,
        on_brokers: Callable[[Iterable[Broker]], Awaitable[None]] | None = None,
        on_grown: Callable[[], None] = lambda: None,
    ) -> None:
        """on_brokers: receives the brokers of each answer, before any client does.

        on_grown: is called when the registry's pins have changed, except by other nodes.
        """
        self._config = config
        self.security = Security(config)
        pattern = config.lane_name_pattern
        plans = load_plans(config.lanes, lane_name_pattern=pattern)
        self.node_rules: tuple[NodeRule, ...] = node_rules(config.lanes, plans)
        """This node's lane rules, as other nodes get them."""
        self.registry = TopicRegistry(config.lanes, lane_name_pattern=pattern, plans=plans)
        self.brokers: dict[int, Broker] = {}
        self.cluster_id = ""
        self.links = BrokerLinks(
            config,
            self.security,
            stats or ProxyStats(),
            where=lambda: [(broker.host, broker.port) for broker in self.brokers.values()],
            id_of=self._id_of,
        )
        self.leaders: dict[PartitionKey, tuple[int, int]] = {}
        """(broker id, leader epoch)."""
        self._on_brokers, self._on_grown = on_brokers, on_grown
        self.on_leader: list[Callable[[PartitionKey, int], None]] = []
        """Functions that receive a later leader epoch of a partition than was known."""
        self._to_leaders: dict[
            asyncio.Task[ServiceLink | KeylaneError], tuple[PartitionKey, int]
        ] = {}
        """Connections being opened to leaders: the partition, and the leader's epoch."""
        self._logged_grown: dict[str, int] = {}
        self._logged_refused: dict[str, set[tuple[str, int]]] = {}
        """By topic."""
        self._refreshing: asyncio.Lock = asyncio.Lock()
        self._seeking: dict[str, asyncio.Task[None]] = {}
        """By topic: tasks that learn its leaders, beside all requests."""

    async def start(self) -> None:
        """Learn brokers and topics. Raises: UpstreamLost, ConfigInvalid (a lane name clash)."""
        await self.refresh(strict=True)

    def stop(self) -> None:
        """Drop the service connections."""
        for seeking in list(self._seeking.values()):
            seeking.cancel()
        self.links.stop()

    async def refresh(self, *, strict: bool = False) -> None:
        """Learn all brokers and topics anew. Raises: UpstreamLost."""
        async with self._refreshing:
            await self._learn(await self._metadata(topics=None), strict=strict, complete=True)

    async def refresh_topic(self, name: str) -> None:
        """Learn one topic by its physical name. Raises: UpstreamLost."""
        await self.refresh_topics((name,))

    async def refresh_topics(self, names: Collection[str]) -> None:
        """Learn topics by their physical names, with one request. Raises: UpstreamLost."""
        async with self._refreshing:
            await self._learn(await self._metadata(topics=tuple(names)))

    def seek_leader(self, topic: str, topic_id: uuid.UUID, partition: int, epoch: int) -> None:
        """Learn the next leader in the background: the one of this epoch leads no more.

        The next one may have another log, and until it is known offsets are led on by the old one.
        """
        if topic not in self._seeking:
            seeking = self._seek(topic, (topic_id, partition), epoch)
            task = self._seeking[topic] = spawn(seeking, "next leader")
            task.add_done_callback(lambda _: self._seeking.pop(topic))

    async def _seek(self, topic: str, place: PartitionKey, epoch: int) -> None:
        for pause_s in SEEK_PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                await self.refresh_topic(topic)
            except KeylaneError as error:
                log.debug("next leader is not known yet topic=%s reason=%s", topic, error)
            if place not in self.leaders or self.leaders[place][1] > epoch:
                return

    async def link_to(self, node_id: int) -> ServiceLink:
        """Open a service connection to a broker. Raises: UpstreamLost."""
        return await self.links.open(self._address_of(node_id))

    async def leader_of(self, topic: str, topic_id: uuid.UUID, partition: int) -> tuple[int, int]:
        """Return (broker id, leader epoch), learnt anew. Raises: UpstreamLost."""
        await self.refresh_topic(topic)
        found = self.leaders.get((topic_id, partition))
        if found is None or found[0] < 0:
            raise UpstreamLost(f"topic {topic} partition {partition} has no leader")
        return found

    async def link_to_leader(
        self, topic: str, topic_id: uuid.UUID, partition: int
    ) -> tuple[ServiceLink, int, int]:
        """Return a new connection to a leader, its id and epoch. Raises: UpstreamLost.

        A leader that hangs is not waited for once another one leads.
        """
        leader_id, epoch = await self.leader_of(topic, topic_id, partition)
        opening = spawn(outcome_of(self.link_to(leader_id)), "link to a leader")
        self._to_leaders[opening] = (topic_id, partition), epoch
        try:
            await asyncio.wait({opening})
        finally:
            del self._to_leaders[opening]
            opening.cancel()
        if opening.cancelled():
            raise UpstreamLost(f"broker {leader_id} leads topic {topic} no more")
        return link_of(opening.result()), leader_id, epoch

    async def ask_broker(self, node_id: int, entity: Any) -> Any:
        """Ask one broker, over a connection that is kept for questions. Raises: UpstreamLost."""
        return await (await self.links.kept(self._address_of(node_id))).request(entity)

    async def ask_coordinator(self, group: str, entity: Any) -> Any:
        """Find a group's coordinator and ask it. Raises: UpstreamLost."""
        return await self.ask_broker(await self.coordinator_of(group), entity)

    async def coordinator_of(self, group: str) -> int:
        """Return the broker that coordinates a group. Raises: UpstreamLost."""
        found = await self.request(FindCoordinatorRequest(key=group))
        if found.error_code != 0:
            raise UpstreamLost(f"coordinator of group {group}: {found.error_code.name}")
        await self.learn_brokers((found,))
        return int(found.node_id)

    async def versions_of(self, node_id: int) -> Mapping[int, int]:
        """Return the highest version of each API that a broker speaks. Raises: UpstreamLost."""
        return (await self.links.kept(self._address_of(node_id))).version_max

    def _address_of(self, node_id: int) -> Address:
        """Return the address of a broker. Raises: UpstreamLost."""
        broker = self.brokers.get(node_id)
        if broker is None:
            raise UpstreamLost(f"broker {node_id} is unknown")
        return broker.host, broker.port

    async def request(self, entity: Any) -> Any:
        """Ask any broker with a kio request. Raises: UpstreamLost."""
        return await self.links.ask_any(lambda link: link.request(entity))

    def _id_of(self, host: str, port: int) -> int | None:
        for broker in self.brokers.values():
            if (broker.host, broker.port) == (host, port):
                return broker.node_id
        return None

    async def _metadata(self, *, topics: tuple[str, ...] | None) -> Any:
        return await self.links.ask_any(partial(self._ask_metadata, topics))

    async def _ask_metadata(self, topics: tuple[str, ...] | None, link: ServiceLink) -> Any:
        version = min(link.version_max.get(ApiKey.METADATA, 0), METADATA_VERSION_MAX)
        if version < METADATA_VERSION_MIN:
            raise ConfigInvalid(
                f"bootstrap: brokers speak Metadata v{version}, need v12 (Kafka 3.1)"
            )
        schema: Any = load_request_schema(ApiKey.METADATA, version)
        topic_schema = Topic12 if version == METADATA_VERSION_MIN else Topic13
        wanted = (
            None
            if topics is None
            else tuple(topic_schema(topic_id=None, name=TopicName(name)) for name in topics)
        )
        entity = schema(
            topics=wanted,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        return await link.request(entity)

    async def _learn(self, answer: Any, *, strict: bool = False, complete: bool = False) -> None:
        self.cluster_id = answer.cluster_id or self.cluster_id
        await self.learn_brokers(answer.brokers)
        for topic in answer.topics:
            self.learn_topic(topic, strict=strict)
        if complete:
            present = {topic.name for topic in answer.topics}
            for name in [name for name in self.registry.topics if name not in present]:
                self.registry.forget(name)

    async def learn_brokers(self, brokers: Any) -> None:
        """Take note of brokers in a kio answer and have listeners bound for new ones."""
        found = []
        for entry in brokers:
            node_id = int(getattr(entry, "node_id", getattr(entry, "broker_id", -1)))
            known = self.brokers.get(node_id)
            # FindCoordinator gives no rack; that is no news about it.
            rack = getattr(entry, "rack", known.rack if known is not None else None)
            broker = Broker(node_id=node_id, host=entry.host, port=int(entry.port), rack=rack)
            if known != broker:
                self.brokers[node_id] = broker
                if known is not None:
                    self.links.leave((known.host, known.port))
            found.append(broker)
        if self._on_brokers is not None:
            await self._on_brokers(found)

    def read_racks(self, topic_id: uuid.UUID, partition_count: int) -> tuple[frozenset[str], ...]:
        """Return each partition's rack, which is its leader's; empty: none is known."""
        racks = []
        for partition in range(partition_count):
            leader_id, _ = self.leaders.get((topic_id, partition), (-1, -1))
            broker = self.brokers.get(leader_id)
            racks.append(frozenset({broker.rack} if broker and broker.rack else ()))
        return tuple(racks) if any(racks) else ()

    def learn_topic(self, topic: Any, *, strict: bool = False) -> None:
        """Take note of a topic in a kio Metadata answer."""
        if topic.error_code != 0:
            # UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID: it was deleted.
            if int(topic.error_code) in (3, 100) and topic.name:
                self.registry.forget(topic.name)
            return
        try:
            self.registry.learn(topic.name, topic.topic_id, len(topic.partitions))
        except ConfigInvalid as error:
            if strict:
                raise
            log.error("topic is hidden by lanes topic=%s reason=%s", topic.name, error)
            return
        self._log_grown(topic.name)
        self._log_refused(topic.name)
        for partition in topic.partitions:
            place = topic.topic_id, int(partition.partition_index)
            known, epoch = self.leaders.get(place), int(partition.leader_epoch)
            self.leaders[place] = int(partition.leader_id), epoch
            if known is not None and known[1] < epoch:
                self._note_leader(place, epoch)

    def _note_leader(self, place: PartitionKey, epoch: int) -> None:
        """Note a later leader of a partition."""
        for opening, (of_place, of_epoch) in list(self._to_leaders.items()):
            if of_place == place and of_epoch < epoch:
                opening.cancel()
        for report in self.on_leader:
            report(place, epoch)

    def topic_ids(self) -> set[uuid.UUID]:
        """Return the topics of which something is known."""
        known = {topic.topic_id for topic in self.registry.topics.values()}
        return known | {topic_id for topic_id, _ in self.leaders}

    def forget_topics(self, topic_ids: Collection[uuid.UUID]) -> None:
        """Forget topics that are surely gone, and not only unknown to a broker that lags behind."""
        for topic_id in topic_ids:
            name = self.registry.name_of_id(topic_id)
            if name is not None:
                self.registry.forget(name)
                self.registry.grown.pop(name, None)
                self._logged_grown.pop(name, None)
                self._logged_refused.pop(name, None)
        for place in [place for place in self.leaders if place[0] in topic_ids]:
            del self.leaders[place]

    def update_nodes(self, number: int, membership: Membership) -> None:
        """Note other nodes' lane rules and pins; log the topics that nodes do not agree on.

        number: this node's.
        """
        others = [node for node in membership.nodes if node.number != number]
        self._update_pins(others)
        registry = self.registry
        before = registry.disputes.among(registry.topics)
        dissenters = registry.disputes.dissenters
        meanings = {
            node.number: LaneMeanings(node.rules, node.lane_name_pattern) for node in others
        }
        registry.update_nodes(number, meanings)
        disputes = registry.disputes.among(registry.topics)
        if registry.disputes.dissenters not in (dissenters, ()):
            log.warning(
                "nodes have other lane rules nodes=%s remedy=give all nodes the same `lanes` and "
                "lane_name_pattern",
                registry.disputes.dissenters,
            )
        for name, reason in islice(disputes.items(), DISPUTES_LOGGED_MAX):
            if before.get(name) != reason:
                log.error("topic is not served topic=%s reason=%s", name, reason)
        if len(disputes) > DISPUTES_LOGGED_MAX:
            named = DISPUTES_LOGGED_MAX
            log.error("topics are not served topics=%d named=%d", len(disputes), named)
        for name, reason in disputes.items():
            count = registry.topics[name].partition_count
            self._logged_refused.setdefault(name, set()).add((reason, count))
        settled = [name for name in before if name not in disputes]
        if settled:
            log.info("nodes agree again topics=%d first=%s", len(settled), settled[0])

    def _update_pins(self, others: Iterable[NodeInfo]) -> None:
        """Keep the pins of other nodes, but not of topics in `accept_layout`."""
        topics = (self.registry.topics.get(name) for name in self._config.accept_layout)
        accepted = {str(topic.topic_id) for topic in topics if topic is not None}
        pins: dict[str, int] = {}
        for node in others:
            for topic_id, count in node.pinned.items():
                if topic_id not in accepted:
                    pins[topic_id] = min(count, pins.get(topic_id, count))
        self.registry.update_pins(pins)
        for name in self.registry.grown:
            self._log_grown(name, is_received=True)

    def _log_refused(self, name: str) -> None:
        """Log once per count that a plan does not fit, under each name that stands for it."""
        count = self.registry.topics[name].partition_count
        for refusal in self.registry.refusals_of(name):
            reported = self._logged_refused.setdefault(name, set())
            if (refusal, count) not in reported:
                reported.add((refusal, count))
                log.error("topic is not served topic=%s reason=%s", name, refusal)

    def _log_grown(self, name: str, *, is_received: bool = False) -> None:
        """Log once per count that partitions of a lane topic are not read by its lanes."""
        count = self.registry.grown.get(name)
        if count is None or self._logged_grown.get(name) == count:
            return
        self._logged_grown[name] = count
        if not is_received:
            self._on_grown()
        log.warning(
            "partitions were added, lanes do not read them topic=%s partitions=%d seen=%d "
            "remedy=stop the topic's groups, start once with accept_layout",
            name, count, self.registry.topics[name].partition_count,
        )  # fmt: skip
