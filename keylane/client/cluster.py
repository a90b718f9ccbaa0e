"""The brokers as the consumer knows them: what they offer, topics, leaders, coordinators.

Source: Kafka protocol guide; KIP-516 (topic ids, Metadata v12), KIP-511 (ApiVersions v3).
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiokafka.structs import BrokerMetadata
from kio.index import load_request_schema
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

from keylane.client import errors as e
from keylane.client.connection import Connections
from keylane.client.settings import ConsumerSettings
from keylane.client.values import TopicPartition
from keylane.wire.extensions import FEATURE
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_response, write_message

CONNECTION_DEFAULT: Final = 0
CONNECTION_COORDINATION: Final = 1
"""Own connection to the coordinator: a JoinGroup waits there, and blocks what follows it."""
CONNECTION_FETCH: Final = 2
"""A fetch waits at the broker for records."""
METADATA_VERSION: Final = 12
FIND_COORDINATOR_VERSION_MAX: Final = 3
API_VERSIONS_VERSION_MAX: Final = 4
API_VERSIONS_NAMED_FROM: Final = 3
NO_LEADER: Final = -1
SOFTWARE_NAME: Final = "keylane"


class PartitionInfo(NamedTuple):
    """A partition as the metadata has it."""

    leader: int
    """Node id; NO_LEADER: there is none now."""
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the metadata has it."""

    topic_id: uuid.UUID | None
    partitions: Mapping[int, PartitionInfo]
    is_internal: bool = False


class ClusterClient:
    """The brokers, what they offer, and the topics that were asked for."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.has_ranges = False
        """The brokers announce `FEATURE`: they are keylane."""
        self._connections: Connections | None = None
        self._nodes: dict[int, BrokerMetadata] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._denied: set[str] = set()
        self._wanted: set[str] = set()
        """Names of the topics to ask for with each refresh."""
        self._wanted_ids: set[uuid.UUID] = set()
        """Ids that no known topic has."""
        self._wants_all = False
        self._names: dict[uuid.UUID, str] = {}
        self._coordinators: dict[str, int] = {}
        self._refreshing = asyncio.Lock()

    # -- start and end --------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to a bootstrap server and learn the brokers.

        Raises: ClusterUnreachable, naming the addresses.
        """
        self._connections = Connections(self.settings, self.refresh)
        await self._bootstrap()
        await self._look_for_feature()

    async def close(self) -> None:
        """Close all connections."""
        if self._connections is not None:
            connections, self._connections = self._connections, None
            await connections.close()

    async def _bootstrap(self) -> None:
        nodes = await self._connected().bootstrap()
        self._nodes = {node.nodeId: node for node in nodes}

    async def _look_for_feature(self) -> None:
        def make(version: int) -> Any:
            schema: Any = load_request_schema(ApiKey.API_VERSIONS, version)
            if version < API_VERSIONS_NAMED_FROM:
                return schema()
            return schema(client_software_name=SOFTWARE_NAME, client_software_version="1")

        for node_id in self._shuffled():
            try:
                answer = await self.ask_entity(
                    node_id, ApiKey.API_VERSIONS, API_VERSIONS_VERSION_MAX, make
                )
            except e.Disconnected:
                continue
            features = getattr(answer, "supported_features", ())  # none before v3
            self.has_ranges = any(feature.name == FEATURE for feature in features)
            return
        raise e.ClusterUnreachable(f"none of the nodes {sorted(self._nodes)} answers")

    # -- requests -------------------------------------------------------------------------

    def versions_of(self, node_id: int, api_key: int) -> tuple[int, int] | None:
        """Return the lowest and highest version that a node offers.

        None: it has no such API, or there was no connection to it yet (see `versions_at`).
        """
        return self._connected().versions_of(node_id, api_key)

    async def versions_at(self, node_id: int, api_key: int) -> tuple[int, int] | None:
        """Return what `versions_of` does, after connecting. Raises: Disconnected."""
        versions = self.versions_of(node_id, api_key)
        if versions is not None:
            return versions
        await self._connected().connect(node_id, CONNECTION_DEFAULT)
        return self._connected().versions_of(node_id, api_key)

    async def ask(
        self,
        node_id: int,
        api_key: int,
        version: int,
        body: bytes,
        *,
        connection: int = CONNECTION_DEFAULT,
        timeout_s: float | None = None,
    ) -> memoryview:
        """Send a request; return the body of its answer, a view of the frame that came.

        connection: requests with the same number share one, on which answers come in order.
        timeout_s: None is `request_timeout_ms`.

        Raises: Disconnected, RequestTimedOut; both are worth another try.
        """
        request = (api_key, version, body)
        return await self._connected().ask(node_id, connection, request, timeout_s)

    async def ask_entity(
        self,
        node_id: int,
        api_key: int,
        version_max: int,
        make: Callable[[int], Any],
        *,
        connection: int = CONNECTION_DEFAULT,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a kio entity, `make(version)`, and return kio's entity of the answer.

        Raises: Disconnected, RequestTimedOut, VersionUnsupported; FrameInvalid for a bad answer.
        """
        version = await self.version_for(node_id, api_key, version_max)
        body = write_message(make(version))
        answer = await self.ask(
            node_id, api_key, version, body, connection=connection, timeout_s=timeout_s
        )
        return read_response(api_key, version, answer)

    async def version_for(
        self, node_id: int, api_key: int, version_max: int, version_min: int = 0
    ) -> int:
        """Return the highest version that the node and the caller have.

        Raises: VersionUnsupported, Disconnected.
        """
        offered = await self.versions_at(node_id, api_key)
        if offered is None:
            raise e.VersionUnsupported(f"node {node_id} has no API {api_key}")
        version = min(version_max, offered[1])
        if version < max(offered[0], version_min):
            raise e.VersionUnsupported(
                f"node {node_id} has API {api_key} v{offered[0]} to v{offered[1]}, "
                f"this client v{version_min} to v{version_max}"
            )
        return version

    def _connected(self) -> Connections:
        if self._connections is None:
            raise e.ConsumerStopped("the consumer is not started, or was stopped")
        return self._connections

    def _shuffled(self) -> list[int]:
        nodes = sorted(self._nodes)
        random.shuffle(nodes)
        return nodes

    # -- coordinators ---------------------------------------------------------------------

    async def coordinator_of(self, group_id: str) -> int:
        """Return the node id of a group's coordinator, looked up once.

        Raises: CoordinatorUnavailable, GroupDenied, Disconnected, BrokerRefused.
        """
        known = self._coordinators.get(group_id)
        if known is not None:
            return known

        def make(version: int) -> Any:
            schema: Any = load_request_schema(ApiKey.FIND_COORDINATOR, version)
            return schema(key=group_id) if version == 0 else schema(key=group_id, key_type=0)

        answer = await self._ask_any(ApiKey.FIND_COORDINATOR, FIND_COORDINATOR_VERSION_MAX, make)
        if answer.error_code:
            raise e.error_of(int(answer.error_code), f"coordinator of group {group_id}")
        node_id = int(answer.node_id)
        self._add_nodes([BrokerMetadata(node_id, answer.host, answer.port, None)])
        self._coordinators[group_id] = node_id
        return node_id

    def coordinator_lost(self, group_id: str) -> None:
        """Forget the coordinator: the next call looks for it again."""
        self._coordinators.pop(group_id, None)

    async def ask_coordinator(
        self,
        group_id: str,
        api_key: int,
        version_max: int,
        make: Callable[[int], Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a kio entity to the group's coordinator, on a separate connection.

        Error codes in the answer are the caller's to see. A lost connection forgets the
        coordinator. Raises: as `coordinator_of` and `ask_entity` do.
        """
        node_id = await self.coordinator_of(group_id)
        try:
            return await self.ask_entity(
                node_id,
                api_key,
                version_max,
                make,
                connection=CONNECTION_COORDINATION,
                timeout_s=timeout_s,
            )
        except e.Disconnected:
            self.coordinator_lost(group_id)
            raise

    # -- metadata -------------------------------------------------------------------------

    async def partitions_of(self, topic: str) -> list[int]:
        """Return the partitions of a topic, ascending; none: no broker knows the topic.

        Raises: TopicDenied, Disconnected.
        """
        if topic not in self._topics:
            self._wanted.add(topic)
            await self.refresh()
        if topic in self._denied:
            raise e.TopicDenied(f"topic {topic}: not allowed to read it")
        info = self._topics.get(topic)
        return [] if info is None else sorted(info.partitions)

    async def topics(self) -> list[str]:
        """Return the names of all topics but internal ones; they are asked for from now on."""
        self._wants_all = True
        await self.refresh()
        return sorted(name for name, info in self._topics.items() if not info.is_internal)

    def want(self, topics: Iterable[str]) -> None:
        """Have these topics in the next refresh."""
        self._wanted.update(topics)

    def topic_id(self, topic: str) -> uuid.UUID | None:
        """Return the topic's id; None: it is not known."""
        info = self._topics.get(topic)
        return None if info is None else info.topic_id

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """Return the name that belongs to an id; None: the next refresh asks for it."""
        name = self._names.get(topic_id)
        if name is None:
            self._wanted_ids.add(topic_id)
        return name

    def leader_of(self, part: TopicPartition) -> int | None:
        """Return the node id of a partition's leader; None: there is none, or it is not known.

        A topic that is not known is asked for with the next refresh.
        """
        self._wanted.add(part.topic)
        info = self._partition(part)
        return None if info is None or info.leader == NO_LEADER else info.leader

    def leader_epoch_of(self, part: TopicPartition) -> int:
        """Return the leader epoch of the metadata; -1: it is not known."""
        info = self._partition(part)
        return -1 if info is None else info.leader_epoch

    def _partition(self, part: TopicPartition) -> PartitionInfo | None:
        topic = self._topics.get(part.topic)
        return None if topic is None else topic.partitions.get(part.partition)

    async def refresh(self) -> None:
        """Ask for the brokers and for the topics that are wanted.

        Raises: ClusterUnreachable, no node and no bootstrap server answers.
        """
        async with self._refreshing:
            wanted = None if self._wants_all else sorted(self._wanted)
            ids = sorted(self._wanted_ids)
            self._take(await self._ask_metadata(wanted, ()), wanted)
            if ids:
                answer = await self._ask_metadata((), ids)
                self._take(answer, ())
                self._wanted.update(
                    topic.name for topic in answer.topics if topic.name and not topic.error_code
                )
                self._wanted_ids.difference_update(ids)

    async def _ask_metadata(self, names: Collection[str] | None, ids: Collection[uuid.UUID]) -> Any:
        make: Any = MetadataRequestTopic
        asked = None
        if names is not None:
            by_name = [make(topic_id=None, name=name) for name in names]
            asked = (*by_name, *(make(topic_id=topic_id, name=None) for topic_id in ids))
        request = MetadataRequest(
            topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        try:
            return await self._ask_any(ApiKey.METADATA, METADATA_VERSION, lambda _version: request)
        except e.Disconnected:
            await self._bootstrap()  # all nodes are gone: there may be others
            return await self._ask_any(ApiKey.METADATA, METADATA_VERSION, lambda _version: request)

    async def _ask_any(self, api_key: int, version_max: int, make: Callable[[int], Any]) -> Any:
        """Ask one node after the other. Raises: the last one's Disconnected."""
        lost = e.Disconnected("no node is known")
        for node_id in self._shuffled():
            try:
                return await self.ask_entity(node_id, api_key, version_max, make)
            except e.Disconnected as error:
                lost = error
        raise lost

    def _take(self, answer: Any, asked: Collection[str] | None) -> None:
        """Take over what an answer says; of topics that were asked for and are unknown, nothing."""
        nodes = [BrokerMetadata(int(b.node_id), b.host, b.port, b.rack) for b in answer.brokers]
        if nodes:
            self._nodes = {}
            self._add_nodes(nodes)
        found: dict[str, TopicInfo] = {}
        for topic in answer.topics:
            if topic.name is None:
                continue
            self._denied.discard(topic.name)
            if topic.error_code == e.TOPIC_AUTHORIZATION_FAILED:
                self._denied.add(topic.name)
            elif not topic.error_code:
                found[topic.name] = _topic_info(topic)
        gone = set(self._topics) if asked is None else set(asked)
        for name in gone.difference(found):
            self._topics.pop(name, None)
        self._topics.update(found)
        self._names.update(
            {info.topic_id: name for name, info in found.items() if info.topic_id is not None}
        )

    def _add_nodes(self, nodes: Iterable[BrokerMetadata]) -> None:
        self._nodes.update({node.nodeId: node for node in nodes})
        self._connected().set_nodes(self._nodes.values())


def _topic_info(topic: Any) -> TopicInfo:
    return TopicInfo(
        topic.topic_id,
        {
            int(each.partition_index): PartitionInfo(int(each.leader_id), int(each.leader_epoch))
            for each in topic.partitions
        },
        bool(topic.is_internal),
    )
