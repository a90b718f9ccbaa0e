"""Survey of groups and topics at the brokers: whether they are there, asked many at a time.

Source: KIP-699 (FindCoordinator of many groups), KIP-709 (OffsetFetch of many groups), KIP-516
(topic ids), KIP-848 and KIP-1071 (groups that DescribeGroups knows as Dead); docs/decisions/039.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_fetch.v8.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.streams_group_describe.v0.request import StreamsGroupDescribeRequest
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32

from keylane.errors import KeylaneError
from keylane.offsets.values import NO_OFFSET
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.groups.group_names import Place

log = logging.getLogger("keylane.forgetting")

GONE: Final = frozenset({"Dead", "Empty"})
"""States of a group without a member."""
ANSWER_S_MAX: Final = 10.0
"""A broker that takes longer for an answer is asked again in the next round."""
GROUP: Final = i8(0)
"""A key type of FindCoordinator."""
DESCRIBED_AT_ONCE: Final = 10
"""Groups; a large one has a megabyte of members' metadata."""
BROKERS_KINDS: Final = (ConsumerGroupDescribeRequest, StreamsGroupDescribeRequest)
"""Groups of other protocols than the classic one, where brokers know such."""
NO_ID: Final = uuid.UUID(int=0)
"""Of topics that brokers made before they knew ids; it says nothing."""


class GroupSurvey:
    """Asks coordinators about groups, and all brokers about topics. Raises nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.is_denied = self._is_logged = False
        """True: brokers have refused keylane's principal the sight of a group in this round."""

    async def find_absent(
        self, groups: Mapping[str, Collection[Place]]
    ) -> dict[str, frozenset[Place]]:
        """Return the places where Kafka has no offset, of each group of which all is sure.

        There are none of a group with members: an offset may have expired under them.
        """
        found: dict[str, frozenset[Place]] = {}
        by_node = await self._coordinators(list(groups))
        asks = (self._ask_node(node, names, groups, found) for node, names in by_node.items())
        await asyncio.gather(*asks)
        return found

    async def find_deserted(self, groups: Collection[str]) -> set[str]:
        """Return the groups of which brokers surely say that they have no members."""
        found: set[str] = set()
        for node, names in (await self._coordinators(list(groups))).items():
            for start in range(0, len(names), DESCRIBED_AT_ONCE):
                members = await self._find_members(node, names[start : start + DESCRIBED_AT_ONCE])
                found |= {name for name, has_members in members.items() if not has_members}
        return found

    async def find_gone(self, topic_ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
        """Ids of topics that each broker, of all that are alive, says it does not know."""
        asked = [topic_id for topic_id in topic_ids if topic_id != NO_ID]
        if not asked:
            return set()
        answer = await self._try(self._cluster.request(_topics(asked)))
        gone = _unknown_ids(answer)
        nodes = () if answer is None else [int(broker.node_id) for broker in answer.brokers]
        for node in nodes:
            if gone:
                gone &= _unknown_ids(await self._ask(node, _topics(sorted(gone))))
        return gone if nodes else set()

    # Inside.
    async def _coordinators(self, groups: list[str]) -> dict[int, list[str]]:
        """Groups by the broker that is their coordinator."""
        if not groups:
            return {}
        request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=tuple(groups))
        answer = await self._try(self._cluster.request(request))
        by_node: dict[int, list[str]] = {}
        for entry in () if answer is None else answer.coordinators:
            self._note_code(entry.error_code)
            if entry.error_code == ErrorCode.none:
                by_node.setdefault(int(entry.node_id), []).append(str(entry.key))
        return by_node

    async def _ask_node(
        self,
        node: int,
        names: list[str],
        groups: Mapping[str, Collection[Place]],
        found: dict[str, frozenset[Place]],
    ) -> None:
        """Put into `found` what a coordinator surely says of its groups.

        Offsets come first: a description has the metadata of all members, so it is asked of few.
        """
        absent = await self._find_places(node, names, groups)
        found.update({name: places for name, places in absent.items() if not places})
        doubtful = [name for name, places in absent.items() if places]
        for start in range(0, len(doubtful), DESCRIBED_AT_ONCE):
            part = doubtful[start : start + DESCRIBED_AT_ONCE]
            for name, has_members in (await self._find_members(node, part)).items():
                found[name] = frozenset() if has_members else absent[name]

    async def _find_places(
        self, node: int, names: list[str], groups: Mapping[str, Collection[Place]]
    ) -> dict[str, frozenset[Place]]:
        """Return the places without an offset, of each group without an error anywhere."""
        request = OffsetFetchRequest(
            groups=tuple(_offsets_of(name, groups[name]) for name in names), require_stable=True
        )
        answer = await self._ask(node, request)
        absent = {}
        for group in () if answer is None else answer.groups:
            entries = {
                (str(topic.name), int(entry.partition_index)): entry
                for topic in group.topics
                for entry in topic.partitions
            }
            codes = {group.error_code, *(entry.error_code for entry in entries.values())}
            for code in codes:
                self._note_code(code)
            name = str(group.group_id)
            if codes == {ErrorCode.none} and entries.keys() == set(groups.get(name, ())):
                absent[name] = frozenset(
                    place
                    for place, entry in entries.items()
                    if int(entry.committed_offset) == NO_OFFSET
                )
        return absent

    async def _find_members(self, node: int, names: list[str]) -> dict[str, bool]:
        """Return whether each group, of those that are sure, has members by any protocol."""
        request = DescribeGroupsRequest(
            groups=tuple(map(GroupId, names)), include_authorized_operations=False
        )
        answer = await self._ask(node, request)
        found: dict[str, bool] = {}
        for group in () if answer is None else answer.groups:
            self._note_code(group.error_code)
            if group.error_code == ErrorCode.none:
                found[str(group.group_id)] = str(group.group_state) not in GONE
        for kind in BROKERS_KINDS:
            deserted = [name for name, has_members in found.items() if not has_members]
            said = await self._find_brokers_members(node, deserted, kind)
            for name in deserted:
                if name in said:
                    found[name] = said[name]
                else:
                    del found[name]
        return found

    async def _find_brokers_members(
        self, node: int, names: list[str], kind: Any
    ) -> dict[str, bool]:
        """Same as `_find_members`, of groups whose members a broker assigns, if it knows such."""
        versions = await self._try(self._cluster.versions_of(node)) if names else None
        if versions is None:
            return {}
        if int(kind.__api_key__) not in versions:
            return dict.fromkeys(names, False)
        request = kind(group_ids=tuple(map(GroupId, names)), include_authorized_operations=False)
        answer = await self._ask(node, request)
        found = {}
        for group in () if answer is None else answer.groups:
            self._note_code(group.error_code)
            if group.error_code in (ErrorCode.none, ErrorCode.group_id_not_found):
                found[str(group.group_id)] = bool(group.members)
        return found

    def _note_code(self, code: ErrorCode) -> None:
        denials = (ErrorCode.group_authorization_failed, ErrorCode.topic_authorization_failed)
        self.is_denied = self.is_denied or code in denials
        if self.is_denied and not self._is_logged:
            self._is_logged = True
            log.info(
                "groups that Kafka has forgotten are kept: keylane's principal may not see them"
                " error=%s remedy=allow Describe on groups and topics",
                code.name.upper(),
            )

    async def _ask(self, node: int, request: Any) -> Any:
        return await self._try(self._cluster.ask_broker(node, request))

    async def _try(self, asking: Any) -> Any:
        """The answer; None where there is none in time."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await asking
        except TimeoutError:
            log.debug("survey answer is late: asking again in the next round in_s=%g", ANSWER_S_MAX)
        except (KeylaneError, OSError) as error:
            log.debug("survey request failed: asking again in the next round reason=%s", error)
        return None


def _offsets_of(group: str, places: Collection[Place]) -> OffsetFetchRequestGroup:
    """Ask by name: asked for all topics, a broker leaves out those that may not be described."""
    by_topic: dict[str, list[i32]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(i32(partition))
    return OffsetFetchRequestGroup(
        group_id=GroupId(group),
        topics=tuple(
            OffsetFetchRequestTopics(name=TopicName(name), partition_indexes=tuple(partitions))
            for name, partitions in by_topic.items()
        ),
    )


def _topics(topic_ids: Collection[uuid.UUID]) -> MetadataRequest:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=one, name=None) for one in topic_ids),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def _unknown_ids(answer: Any) -> set[uuid.UUID]:
    """Ids that are unknown; a topic that may not be described has another error code."""
    return {
        topic.topic_id
        for topic in (() if answer is None else answer.topics)
        if topic.error_code == ErrorCode.unknown_topic_id and topic.topic_id is not None
    }
