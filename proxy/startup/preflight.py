"""A look at all that a node needs before it can serve, without a start: `keylane check`.

In:    a checked configuration. Out: `Finding`s, in the order in which a start would meet them.
It changes nothing: the right to make a topic is asked for by a CreateTopics that only validates.

Source: KIP-430 (authorized operations), KIP-4 (CreateTopics, validateOnly); docs/security.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

from kio.schema.create_topics.v5.request import CreatableTopic, CreateTopicsRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i16, i32, i32Timedelta

from keylane.config.node import ProxyConfig, split_address
from keylane.config.own_names import JOURNAL_ID_PREFIX, JOURNAL_TOPIC, SCANS_TOPIC, SETTINGS_TOPIC
from keylane.config.topic_rules import GLOB_SIGNS
from keylane.errors import FrameInvalid, RightMissing, UpstreamLost, reason_of
from keylane.journal.epochs import LATER, RETRY_BACKOFF_S, next_epoch
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.runtime.workers import worker_config
from keylane.proxy.startup.node_rights import PROBE
from keylane.proxy.topics.node_values import GROUP
from keylane.proxy.topics.rule_matches import match_rules

ANSWER_S_MAX: Final = 30.0
SHARE_FETCH: Final = 78
READ, WRITE, CREATE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 3, 4, 5, 8, 10, 11
OPERATION_NAMES: Final = {
    READ: "Read", WRITE: "Write", CREATE: "Create", DESCRIBE: "Describe",
    DESCRIBE_CONFIGS: "DescribeConfigs", ALTER_CONFIGS: "AlterConfigs",
}  # fmt: skip
NOT_GIVEN: Final = -(2**31)
"""Operations of a broker that did not give them."""
OWN_TOPIC_RIGHTS: Final = (READ, WRITE, DESCRIBE_CONFIGS, ALTER_CONFIGS)
OFFSETS_TOPIC: Final = "__consumer_offsets"
OWN_GROUP: Final = "keylane"
UNKNOWN_PRINCIPAL: Final = "User:KEYLANE"
TOPICS_ASKED_MAX: Final = 1_000
"""Lane topics whose rights are asked for."""
DENIED: Final = frozenset({
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
})  # fmt: skip


Missing = tuple[str, Sequence[int], str]
"""Option of kafka-acls, operations, and what they are for."""


class Status(StrEnum):
    """Weight of a finding."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    status: Status
    subject: str
    """`configuration`, `port`, `kafka`, `right` or `rule`."""
    text: str
    remedy: str | None = None
    """A command, or what to change; None: nothing has to be done."""


async def look_at_ports(config: ProxyConfig, broker_ids: Iterable[int]) -> list[Finding]:
    """Bind each port that a start would bind, and let go of it."""
    found: list[Finding] = []
    for wanted in _ports(config, broker_ids):
        if wanted.port == 0:
            continue
        text = f"{wanted.name} {wanted.host}:{wanted.port}"
        reason = await _try_to_bind(wanted.host, wanted.port, is_shared=wanted.is_shared)
        if reason is None:
            found.append(Finding(status=Status.OK, subject="port", text=text))
        else:
            text = f"{text}: {reason}"
            remedy = f"end what listens there, or choose another port by {wanted.key}"
            found.append(Finding(status=Status.ERROR, subject="port", text=text, remedy=remedy))
    return found


async def look_at_kafka(config: ProxyConfig) -> tuple[list[Finding], list[int]]:
    """Return findings about brokers, rights and rules, and the ids of the brokers.

    Raises: ConfigInvalid (files that the configuration names, brokers that are too old).
    """
    cluster = Cluster(config)
    try:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await cluster.start()
        except (UpstreamLost, TimeoutError) as error:
            reason = _reason(error)
            remedy = (
                "start the brokers, or correct bootstrap; see upstream_tls for brokers with TLS"
            )
            lost = Finding(status=Status.ERROR, subject="kafka", text=reason, remedy=remedy)
            return [lost], []
        found = [finding async for finding in _look(config, cluster)]
        return found, sorted(cluster.brokers)
    finally:
        cluster.stop()


async def _look(config: ProxyConfig, cluster: Cluster) -> AsyncIterator[Finding]:
    text = f"cluster {cluster.cluster_id}, {len(cluster.brokers)} brokers"
    yield Finding(status=Status.OK, subject="kafka", text=text)
    # All at once: behind a firewall each one is waited for in vain.
    looks = (_look_at_broker(config, cluster, broker) for broker in sorted(cluster.brokers))
    for finding in await asyncio.gather(*looks):
        if finding is not None:
            yield finding
    async for right in _look_at_rights(config, cluster):
        yield right
    for rule in look_at_rules(config, cluster):
        yield rule


async def _look_at_broker(config: ProxyConfig, cluster: Cluster, broker: int) -> Finding | None:
    """Return what is wrong with one broker; None: nothing."""
    address = f"{cluster.brokers[broker].host}:{cluster.brokers[broker].port}"
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            versions = await cluster.versions_of(broker)
    except (UpstreamLost, TimeoutError) as error:
        text = f"broker {broker} at {address} cannot be reached: {_reason(error)}"
        remedy = "clients are led to each broker by keylane: open the way to it from here"
        return Finding(status=Status.ERROR, subject="kafka", text=text, remedy=remedy)
    if config.share_groups and SHARE_FETCH not in versions:
        text = f"broker {broker} serves no share groups, which share_groups needs"
        return Finding(
            status=Status.ERROR, subject="kafka", text=text, remedy="use Kafka 4.2 or later"
        )
    return None


def look_at_rules(config: ProxyConfig, cluster: Cluster) -> Iterator[Finding]:
    """Yield a finding for each topic with lanes, and for each rule that has none."""
    for matched in match_rules(config.lanes, cluster.registry):
        if not matched.topics:
            yield Finding(
                status=Status.WARNING,
                subject="rule",
                text=f"{matched.rule}: matches no topic",
                remedy="make the topic, correct the name, or let keylane describe the topic",
            )
        for topic in matched.topics:
            bad = topic.refusal is not None
            yield Finding(
                status=Status.ERROR if bad else Status.OK,
                subject="rule",
                text=f"{topic}: {topic.refusal}" if bad else str(topic),
            )


def _reason(error: UpstreamLost | FrameInvalid | TimeoutError) -> str:
    return str(error) or f"no answer within {ANSWER_S_MAX:g} s"


# -- rights ---------------------------------------------------------------------------------


async def _look_at_rights(config: ProxyConfig, cluster: Cluster) -> AsyncIterator[Finding]:
    missing: list[Missing] = []
    is_known = True
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            missing += await _topics_missing(config, cluster)
            missing += await _groups_missing(cluster)
            missing += await _ids_missing(cluster)
    except (UpstreamLost, FrameInvalid, TimeoutError) as error:
        text = f"the rights of keylane's principal are not known: {_reason(error)}"
        is_known = False
        yield Finding(status=Status.WARNING, subject="right", text=text)
    for option, operations, purpose in missing:
        names = " and ".join(OPERATION_NAMES[one].upper() for one in operations)
        yield Finding(
            status=Status.ERROR,
            subject="right",
            text=f"{names} on {option.replace('--', '')} is missing: {purpose}",
            remedy=_grant(config, option, operations),
        )
    if is_known and not missing:
        yield Finding(status=Status.OK, subject="right", text="keylane's principal has its rights")


def _grant(config: ProxyConfig, option: str, operations: Sequence[int]) -> str:
    """Return the command that gives a right."""
    name = config.login_username
    principal = f"User:{name}" if name else UNKNOWN_PRINCIPAL
    wanted = " ".join(f"--operation {OPERATION_NAMES[one]}" for one in operations)
    return f"kafka-acls --add --allow-principal '{principal}' {wanted} {option}"


async def _topics_missing(config: ProxyConfig, cluster: Cluster) -> list[Missing]:
    own = [JOURNAL_TOPIC, SETTINGS_TOPIC]
    if config.node is not None or config.workers > 1:
        own.append(SCANS_TOPIC)
    lanes = list(cluster.registry.lane_topics())[:TOPICS_ASKED_MAX]
    named = {rule.topic for rule in config.lanes if GLOB_SIGNS.isdisjoint(rule.topic)}
    asked = list(dict.fromkeys([*own, OFFSETS_TOPIC, *sorted(named), *lanes]))
    answer = await cluster.request(
        MetadataRequest(
            topics=tuple(MetadataRequestTopic(name=TopicName(name)) for name in asked),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=True,
        )
    )
    found: list[Missing] = []
    to_make: list[str] = []
    for topic in answer.topics:
        name = str(topic.name)
        needed: Sequence[int]
        if name in own:
            needed, purpose = OWN_TOPIC_RIGHTS, "keylane keeps its state there"
        elif name == OFFSETS_TOPIC:
            needed, purpose = (DESCRIBE, DESCRIBE_CONFIGS), "its settings are copied"
        else:
            needed, purpose = (READ,), "keylane reads the records of lanes itself"
        if name in own and topic.error_code == ErrorCode.unknown_topic_or_partition:
            to_make.append(name)
            continue
        lacking = _lacking(topic.error_code, int(topic.topic_authorized_operations), needed)
        if lacking:
            found.append((f"--topic {name}", lacking, purpose))
    return [*found, *await _makes_missing(cluster, to_make)]


async def _makes_missing(cluster: Cluster, names: Sequence[str]) -> list[Missing]:
    """Ask whether topics could be made, without making them."""
    if not names:
        return []
    answer = await cluster.request(
        CreateTopicsRequest(
            topics=tuple(
                CreatableTopic(
                    name=TopicName(name),
                    num_partitions=i32(1),
                    replication_factor=i16(-1),
                    assignments=(),
                    configs=(),
                )
                for name in names
            ),
            timeout=i32Timedelta.parse(timedelta(seconds=10)),
            validate_only=True,
        )
    )
    return [
        (f"--topic {topic.name}", (CREATE, *OWN_TOPIC_RIGHTS), "keylane makes it for its state")
        for topic in answer.topics
        if topic.error_code in DENIED
    ]


async def _groups_missing(cluster: Cluster) -> list[Missing]:
    found: list[Missing] = []
    for name, needed, purpose in (
        (GROUP, (READ,), "nodes find each other through it, and the only node keeps others out"),
        (OWN_GROUP, (DESCRIBE,), "a coordinator is found by it"),
    ):
        request = DescribeGroupsRequest(groups=(GroupId(name),), include_authorized_operations=True)
        group = await _described(cluster, name, request)
        if group is None:
            found.append((f"--group {name}", needed, purpose))
            continue
        lacking = _lacking(group.error_code, int(group.authorized_operations), needed)
        if lacking:
            found.append((f"--group {name}", lacking, purpose))
    return found


async def _described(cluster: Cluster, group: str, request: DescribeGroupsRequest) -> Any:
    """Return a group as its coordinator describes it; None: the right to find that is missing.

    In a new cluster brokers make their offsets topic first; no event says when it is there.
    """
    while True:
        found = await cluster.request(FindCoordinatorRequest(key=group))
        if found.error_code in DENIED:
            return None
        if found.error_code == ErrorCode.none:
            answer = await cluster.ask_broker(int(found.node_id), request)
            (described,) = answer.groups
            if described.error_code not in LATER:
                return described
        elif found.error_code not in LATER:
            raise UpstreamLost(f"coordinator of group {group}: {found.error_code.name}")
        await asyncio.sleep(RETRY_BACKOFF_S)


async def _ids_missing(cluster: Cluster) -> list[Missing]:
    """Ask for an epoch of an id with which nothing is written: it fences no node."""
    try:
        await next_epoch(cluster, PROBE)
    except RightMissing:
        option = f"--transactional-id {JOURNAL_ID_PREFIX} --resource-pattern-type prefixed"
        return [(option, (DESCRIBE, WRITE), "a node fences the one before it by them")]
    return []


def _lacking(error: ErrorCode, operations: int, needed: Sequence[int]) -> list[int]:
    """Return the operations of `needed` that are not given."""
    if error in DENIED:
        return list(needed)
    if operations == NOT_GIVEN or error != ErrorCode.none:
        return []
    return [one for one in needed if not operations & 1 << one]


# -- ports ----------------------------------------------------------------------------------


class _Port(NamedTuple):
    """A port that a start would bind."""

    name: str
    key: str
    """Key of the configuration that chooses it."""
    host: str
    port: int
    """0: any free one."""
    is_shared: bool = False
    """True: other nodes of this machine listen there, too."""


def _ports(config: ProxyConfig, broker_ids: Iterable[int]) -> Iterator[_Port]:
    brokers = list(broker_ids)
    host, port = split_address(config.listen)
    yield _Port("listen", "listen", host, port, config.share_port or config.workers > 1)
    nodes = [config]
    if config.workers > 1:
        nodes = [worker_config(config, index) for index in range(config.workers)]
    for node in nodes:
        for broker in brokers:
            name = f"listener of broker {broker}"
            yield _Port(name, "broker_ports_from", host, node.broker_port(broker))
        if node.control is not None:
            yield _Port("control", "control", *split_address(node.control))


async def _try_to_bind(host: str, port: int, *, is_shared: bool) -> str | None:
    """Return the reason why a port cannot be bound; None: it can."""
    try:
        server = await asyncio.get_running_loop().create_server(
            asyncio.Protocol, host, port, start_serving=False, reuse_port=is_shared or None
        )
    except OSError as error:
        return reason_of(error)
    except OverflowError:
        return "no such port"
    server.close()
    await server.wait_closed()
    return None


def worst(found: Iterable[Finding]) -> Status:
    """Return the weight of the worst finding."""
    order = list(Status)
    return max((finding.status for finding in found), key=order.index, default=Status.OK)
