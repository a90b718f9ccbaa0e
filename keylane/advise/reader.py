"""Asks the brokers: two looks at offsets, and a bounded sample of records between them.

Nothing is joined and nothing is committed. Kafka sees metadata, offsets and fetches.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from kio.index import load_request_schema
from kio.schema.describe_configs.v4 import request as configs_request
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic

from keylane.advise.advice import Evidence
from keylane.advise.errors import AdviceFailed, NothingToRead, with_cure
from keylane.advise.facts import Look, TopicFacts, find_group, produced_per_s
from keylane.advise.fetching import ELECTION_S, Bounds, TopicSampler, check_known, made_anew
from keylane.advise.sample import TopicSample
from keylane.client import errors as e
from keylane.client import offset_calls as calls
from keylane.client.cluster import METADATA_VERSION, ClusterClient
from keylane.client.reading import EARLIEST, LATEST
from keylane.client.settings import ConsumerSettings
from keylane.client.values import TopicPartition
from keylane.errors import KeylaneError
from keylane.wire.header import ApiKey

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
COORDINATOR_BACKOFF_S: Final = 0.25
DESCRIBE_GROUPS_VERSION: Final = 5
CONSUMER_DESCRIBE_VERSION: Final = 1
CONFIGS_VERSION: Final = 4
TOPIC_RESOURCE: Final = 2
CLEANUP_POLICY: Final = "cleanup.policy"
DEAD: Final = "Dead"
"""State of a classic group that the coordinator does not know."""
NO_GROUP: Final = 69  # GROUP_ID_NOT_FOUND
REFUSALS: Final = e.COORDINATOR_LOST | {
    e.COORDINATOR_LOAD_IN_PROGRESS,
    e.GROUP_AUTHORIZATION_FAILED,
}
"""Codes that say nothing of whether the group exists."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The topic and group to look at, and how far."""

    topic: str
    group: str | None
    bounds: Bounds
    watch_s: float
    """Time between the two looks, at least."""
    since_ms: int | None = None
    """Records older than this time are left out; None: all that is kept counts."""


async def read_evidence(
    settings: ConsumerSettings, asked: Scope, progress: Callable[[str], None]
) -> Evidence:
    """Return what the brokers say of a topic and a group.

    settings: those of a consumer without a group that reads committed records.
    Raises: AdviceFailed, one line with the cure.
    """
    cluster = ClusterClient(settings)
    try:
        await cluster.start()
        return await _Inquiry(cluster, settings, asked, progress).run()
    except KeylaneError as error:
        raise with_cure(error, topic=asked.topic, group=asked.group) from None
    finally:
        await cluster.close()


class _Inquiry:
    """One run of the questions, in the order in which they are asked."""

    def __init__(
        self,
        cluster: ClusterClient,
        settings: ConsumerSettings,
        asked: Scope,
        progress: Callable[[str], None],
    ) -> None:
        self._cluster, self._settings, self._asked = cluster, settings, asked
        self._progress = progress
        self._now_s = asyncio.get_running_loop().time
        self._parts: list[int] = []
        self._topic_id: uuid.UUID | None = None

    async def run(self) -> Evidence:
        """Look, read, look again. Raises: KeylaneError."""
        topic, group = self._asked.topic, self._asked.group
        if self._cluster.has_ranges:
            raise AdviceFailed(
                "--bootstrap is keylane, which shows lanes: name the brokers behind it"
            )
        self._parts = await self._cluster.partitions_of(topic)
        if not self._parts:
            raise e.TopicUnknown(f"topic {topic}: no broker knows it")
        self._topic_id = self._cluster.topic_id(topic)
        member_count = None
        if group is not None:
            member_count = await self._ask_coordinator(group, self._count_members)
        first = await self._look()
        if group is not None and member_count is None and not first.committed:
            raise AdviceFailed(
                f"group {group}: the brokers know no such group; kafka-consumer-groups --list"
                " prints those that there are, or omit --group"
            )
        sample, offsets_kept = await self._read_sample()
        wait_s = first.at_s + self._asked.watch_s - self._now_s()
        if wait_s > 0:
            self._progress(f"watching offsets for {wait_s:.0f} s more")
            await asyncio.sleep(wait_s)  # rates are of two looks as far apart as was asked
        second = await self._look()
        facts = await self._describe_topic(first, second, sample, offsets_kept)
        return Evidence(
            keys=sample.keys(),
            topic=facts,
            group=None if group is None else find_group(group, member_count, first, second),
            sample=sample,
            distinct_keys=sample.distinct_keys(),
        )

    # -- offsets --------------------------------------------------------------------------

    async def _look(self) -> Look:
        ends = await self._offsets(LATEST, READ_UNCOMMITTED)
        return Look(at_s=self._now_s(), ends=ends, committed=await self._committed())

    async def _offsets(self, timestamp: int, isolation: int) -> dict[int, int]:
        """Return an offset of each partition, with another try while leaders change."""
        wanted = {TopicPartition(self._asked.topic, part): timestamp for part in self._parts}
        found: dict[int, int] = {}
        end_s = self._now_s() + ELECTION_S
        while True:
            got, errors = await calls.list_offsets(self._cluster, wanted, isolation)
            found |= {part.partition: each.offset for part, each in got.items()}
            wanted = dict.fromkeys(errors, timestamp)
            if not wanted:
                return found
            failed = calls.first_error(errors, "", e.STALE_METADATA)
            if failed is not None:
                raise failed
            if self._now_s() > end_s:
                await check_known(self._cluster, self._asked.topic)
                place = calls.place_of(min(wanted))
                raise AdviceFailed(f"{place}: no leader; wait until its broker is back")
            await asyncio.sleep(self._settings.retry_backoff_s)  # an election has no event
            await self._cluster.refresh()

    async def _committed(self) -> dict[int, int]:
        group = self._asked.group
        return {} if group is None else await self._ask_coordinator(group, self._fetch_committed)

    async def _fetch_committed(self, group: str) -> dict[int, int]:
        parts = {TopicPartition(self._asked.topic, part): () for part in self._parts}
        fetched = await calls.fetch_committed(self._cluster, group, parts)
        # A transaction that is under way hides an offset: that partition says nothing then. Nor
        # does a group that has no offsets, such as a share group.
        says_nothing = (e.UNSTABLE_OFFSET_COMMIT, NO_GROUP)
        failed = calls.first_error(fetched.errors, group, says_nothing)
        if failed is not None:
            raise failed
        return {
            part.partition: committed.offset
            for part, committed in fetched.found.items()
            if committed is not None
        }

    # -- records --------------------------------------------------------------------------

    async def _read_sample(self) -> tuple[TopicSample, int]:
        """Return the sample, and how many offsets the log has."""
        topic, since_ms = self._asked.topic, self._asked.since_ms
        starts = await self._offsets(EARLIEST, READ_COMMITTED)
        ends = await self._offsets(LATEST, READ_COMMITTED)
        kept = sum(max(0, ends[part] - starts[part]) for part in self._parts)
        if since_ms is not None:
            found = await self._offsets(since_ms, READ_COMMITTED)
            starts = {
                part: ends[part] if found[part] < 0 else max(starts[part], found[part])
                for part in self._parts
            }
        ranges = {part: (starts[part], max(starts[part], ends[part])) for part in self._parts}
        if not any(end > start for start, end in ranges.values()):
            raise NothingToRead(
                f"topic {topic}: it is empty; produce records first"
                if not kept
                else f"topic {topic}: no record is that new; give --since more time"
            )
        sampler = TopicSampler(self._cluster, self._settings, topic, self._asked.bounds)
        sample = TopicSample(topic, await sampler.read(ranges, self._progress))
        if not sample.record_count:
            raise NothingToRead(
                f"topic {topic}: its offsets hold no committed record; produce records first,"
                " or give --seconds more time"
            )
        return sample, kept

    # -- descriptions ---------------------------------------------------------------------

    async def _ask_coordinator(self, group: str, ask: Callable[[str], Awaitable[T]]) -> T:
        """Return what a question gives, with another try while the group's coordinator changes.

        A cluster that has had no group yet makes the topic of offsets first.
        """
        end_s = self._now_s() + ELECTION_S
        while True:
            try:
                return await ask(group)
            except (e.CoordinatorUnavailable, e.Disconnected):
                if self._now_s() > end_s:
                    raise
            self._cluster.coordinator_lost(group)
            await asyncio.sleep(COORDINATOR_BACKOFF_S)  # an election has no event

    async def _count_members(self, group: str) -> int | None:
        """Return the members of a group of either protocol; None: the coordinator knows none."""
        cluster = self._cluster
        answer = await cluster.ask_coordinator(
            group, ApiKey.DESCRIBE_GROUPS, DESCRIBE_GROUPS_VERSION, partial(_describe, group)
        )
        found = answer.groups[0]
        if int(found.error_code) not in (e.NONE, NO_GROUP):
            raise e.error_of(int(found.error_code), f"group {group}")
        if found.error_code == e.NONE and found.group_state != DEAD:
            return len(found.members)
        try:
            answer = await cluster.ask_coordinator(
                group,
                ApiKey.CONSUMER_GROUP_DESCRIBE,
                CONSUMER_DESCRIBE_VERSION,
                partial(_describe_consumer, group),
            )
        except e.VersionUnsupported:  # before Kafka 4.0 there are no such groups
            return None
        found = answer.groups[0]
        if int(found.error_code) in REFUSALS:
            raise e.error_of(int(found.error_code), f"group {group}")
        return None if found.error_code else len(found.members)

    async def _describe_topic(
        self, first: Look, second: Look, sample: TopicSample, offsets_kept: int
    ) -> TopicFacts:
        topic, node_id = self._asked.topic, self._any_leader()
        make: Any = MetadataRequestTopic
        request = MetadataRequest(
            topics=(make(topic_id=None, name=topic),),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = await self._cluster.ask_entity(
            node_id, ApiKey.METADATA, METADATA_VERSION, lambda _version: request
        )
        described = answer.topics[0]
        if described.error_code:
            raise e.error_of(int(described.error_code), f"topic {topic}")
        if described.topic_id != self._topic_id:
            raise made_anew(topic)
        partitions = described.partitions
        span_s = sample.seconds
        return TopicFacts(
            topic=topic,
            partition_count=len(self._parts),
            replication=min((len(each.replica_nodes) for each in partitions), default=0),
            out_of_sync=sum(len(p.isr_nodes) < len(p.replica_nodes) for p in partitions),
            is_compacted=await self._is_compacted(node_id),
            offsets_kept=offsets_kept,
            produced_per_s=produced_per_s(first, second),
            produced_mean_per_s=sample.records_in_range / span_s if span_s > 0 else None,
            looked_s=second.at_s - first.at_s,
        )

    def _any_leader(self) -> int:
        for part in self._parts:
            leader = self._cluster.leader_of(TopicPartition(self._asked.topic, part))
            if leader is not None:
                return leader
        raise AdviceFailed(f"topic {self._asked.topic}: no partition has a leader; try again")

    async def _is_compacted(self, node_id: int) -> bool | None:
        resource: Any = configs_request.DescribeConfigsResource
        request = configs_request.DescribeConfigsRequest(
            resources=(
                resource(
                    resource_type=TOPIC_RESOURCE,
                    resource_name=self._asked.topic,
                    configuration_keys=(CLEANUP_POLICY,),
                ),
            )
        )
        answer = await self._cluster.ask_entity(
            node_id, ApiKey.DESCRIBE_CONFIGS, CONFIGS_VERSION, lambda _version: request
        )
        policies = [
            config.value for config in answer.results[0].configs if config.name == CLEANUP_POLICY
        ]
        return "compact" in (policies[0] or "") if policies else None


def _describe(group: str, version: int) -> Any:
    # The version is 5: brokers that serve this client's Fetch have it.
    schema: Any = load_request_schema(ApiKey.DESCRIBE_GROUPS, version)
    return schema(groups=(group,), include_authorized_operations=False)


def _describe_consumer(group: str, version: int) -> Any:
    schema: Any = load_request_schema(ApiKey.CONSUMER_GROUP_DESCRIBE, version)
    return schema(group_ids=(group,), include_authorized_operations=False)
