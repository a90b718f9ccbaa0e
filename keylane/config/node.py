"""Keys of a node's configuration, and rules that several of them have to fit.

Source: names of Kafka's own broker configs where one exists.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from keylane.config.memory import MemoryConfig
from keylane.config.security import expect_control_guard, expect_node_secret
from keylane.config.share_rules import ShareRule
from keylane.config.topic_rules import LEGAL_TOPIC, check_rule_topic, falls_under
from keylane.keyrange.hash import HashName
from keylane.keyrange.space import LANE_COUNT_MAX

PORT_MAX: Final = 65535
Port = Annotated[int, Field(ge=1, le=PORT_MAX)]
LEGAL_HOST: Final = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*",
    re.IGNORECASE,
)
NODE_NUMBER_MAX: Final = 999
"""Of a node: with it virtual broker ids stay far below 2^31."""
WORKERS_MAX: Final = 64


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LaneRule(_Frozen):
    """Topics whose name matches `topic` are seen as `lanes` lanes per partition, or by a plan."""

    topic: str = Field(
        description="Topic name, or a glob such as `shop-*`. Globs leave out brokers' own topics, "
        "and those that Kafka Streams makes (`*-changelog`, `*-repartition`)."
    )
    lanes: int | None = Field(
        default=None,
        ge=1,
        le=LANE_COUNT_MAX,
        description="Lanes per partition, of equal key ranges.",
    )
    plan: str | None = Field(
        default=None,
        min_length=1,
        description="In place of `lanes`: path of a range plan (`keylane-range-plan`). Its cuts "
        "per partition are the lanes of the plan's topic.",
    )
    hash: HashName = Field(
        default="xxh64",
        description="Hash of keys. `murmur2`: a key's lane index is the partition that Kafka's "
        "default partitioner has for it in a topic of as many partitions as there are lane "
        "indexes, so that the lanes are co-partitioned with such a topic. Producers of this topic "
        "have to use that partitioner.",
    )
    reserve_message_value: bool = Field(
        default=True,
        description="`reserve.message.value.range.fetch`: keep whole records in the cache for the "
        "other lanes. With false only their places are kept, and each lane reads its records "
        "again.",
    )
    compression: Literal["none", "lz4", "zstd"] = Field(
        default="none",
        description="Compress the lanes' batches again before they are sent, for links that cost "
        "more than processor time. Compression takes several times the processor time of "
        "splitting.",
    )
    accept_range_fetch: bool = Field(
        default=True,
        description="`accept.range.fetch`: false refuses fetches of the lanes until the control "
        "port allows them.",
    )

    @field_validator("topic")
    @classmethod
    def _topic_is_legal(cls, value: str) -> str:
        return check_rule_topic(value)

    @model_validator(mode="after")
    def _has_lanes_or_plan(self) -> Self:
        if (self.lanes is None) == (self.plan is None):
            raise ValueError("needs `lanes` or `plan`, and not both")
        if self.plan is not None and self.hash != "xxh64":
            raise ValueError(
                f"hash: a plan has cuts in the space of xxh64, and lanes by {self.hash} cannot be "
                "cut elsewhere; give `lanes` in the place of `plan`"
            )
        return self

    def matches(self, topic: str) -> bool:
        """Return whether `topic` falls under this rule; internal topics never do."""
        return falls_under(topic, self.topic)


class GroupRule(_Frozen):
    """Exceptions for groups whose id matches `group`."""

    group: str = Field(min_length=1, description="Group id, or a glob such as `billing-*`.")
    assignor: Literal["client", "key-range"] | None = Field(
        default=None,
        description="`client`: the members' own assignor assigns lanes as partitions. `key-range`: "
        "keylane replaces the leader's plan with its own, for assignors of any name. When left "
        "out: `key-range` for stock assignors, `client` for others.",
    )
    co_partitioned: bool | None = Field(
        default=None,
        description="True: a member gets the same lanes of all topics that are cut alike, for "
        "joins by key. False: each topic is assigned for itself. When left out: true with the "
        "`range` assignor, which gives members the same partitions of all topics; else false.",
    )
    rebalance_by_load: bool = Field(
        default=True,
        description="False: keylane moves no lanes for the load alone, and asks for no rebalance; "
        "lanes move when members come and go.",
    )
    streams_mixed: Literal["refuse", "allow"] = Field(
        default="refuse",
        description="Kafka Streams applications with topics in one subtopology that place a key "
        "differently, such as lanes of xxh64 and a plain topic: a join of them misses records. "
        "`allow` is for topics that are only merged.",
    )

    def matches(self, group: str) -> bool:
        """Return whether `group` falls under this rule."""
        return fnmatch.fnmatchcase(group, self.group)


class ProxyConfig(MemoryConfig):
    """Configuration of a node. Every queue and buffer has its bound here."""

    bootstrap: str = Field(description="Upstream brokers, `host:port[,host:port]`.")
    listen: str = Field(
        default="127.0.0.1:19092",
        description="Bootstrap address for clients; the broker with id n is at the port + 1 + n "
        "(port 0: any free ports).",
    )
    advertise: str | None = Field(
        default=None,
        description="Host name that clients get; the host of `listen` when left out.",
    )
    advertise_port: Port | None = Field(
        default=None,
        description="Bootstrap port that clients get, if another port leads to that of `listen` (a "
        "NodePort); the broker with id n is at this port + 1 + n.",
    )
    advertise_port_step: int = Field(
        default=0,
        ge=0,
        le=PORT_MAX,
        description="Distance between the advertised ports of two nodes, if all nodes are reached "
        "under one host name: `node` times this is added to `advertise_port`. More than the "
        "highest broker id + 1.",
    )
    advertise_pattern: str | None = Field(
        default=None,
        description="Address that clients get for each broker, with its id in place of `{broker}` "
        "and the number of `node` in place of `{node}`, such as "
        "`n{node}-b{broker}.kafka.example.com:443`: for a gateway that finds the listener by the "
        "name in the TLS handshake (SNI). Bootstrap is then at `advertise`, with the same port.",
    )
    control: str | None = Field(
        default=None, description="`host:port` of the control port (statistics, health)."
    )
    control_advertise: str | None = Field(
        default=None,
        description="Host name under which other nodes, and their callers, reach the control port "
        "of this one. When left out, the host of `control`; if that is no single address, the host "
        "that clients get.",
    )
    lanes: tuple[LaneRule, ...] = Field(
        default=(),
        description="Rules for topics that clients see as lanes; the first rule that fits wins.",
    )
    groups: tuple[GroupRule, ...] = Field(
        default=(),
        description="Exceptions for groups on lanes; the first rule that fits wins. keylane "
        "assigns the lanes of a group without a rule by load, if its assignor is a stock one.",
    )
    share_groups: tuple[ShareRule, ...] = Field(
        default=(),
        description="Share groups whose records are handed out in the order of their keys; the "
        "first rule that fits a group and a topic wins. Brokers of Kafka 4.2 or later are needed.",
    )
    load_rebalance_interval_s: float = Field(
        default=600.0,
        gt=0,
        description="Time between two rebalances that keylane asks a group for, when measured "
        "load is out of balance; the first one can come after a tenth of it. As "
        "`probing.rebalance.interval.ms` of Kafka Streams. Lanes of groups with the consumer "
        "protocol move without a rebalance, at most once in a tenth of it.",
    )
    lane_name_pattern: str | None = Field(
        default="{topic}.lanes-{lanes}",
        description="Names under which any topic can be read as lanes beside its own name; empty "
        "turns it off.",
    )
    lane_names_per_principal_max: int = Field(
        default=64,
        ge=1,
        description="Lane names under which one principal (without a login, one address) reads at "
        "a time; each of them is one more read of its topic. At the bound a new name replaces the "
        "one with the oldest request, if that is 10 s old; otherwise its reads are refused with "
        "TOPIC_AUTHORIZATION_FAILED.",
    )
    accept_layout: tuple[str, ...] = Field(
        default=(),
        description="Topics whose lanes may from now on mean other key ranges or partitions than "
        "at the last commit of their groups. Stop these groups first.",
    )
    accept_individual_commit: bool = Field(
        default=True,
        description="`accept.individual.commit`: false refuses commits of lanes and key ranges; "
        "the control port changes it while running.",
    )
    accept_range_fetch: tuple[str, ...] = Field(
        default=(),
        description="Topics (names or globs) whose key ranges may be assigned to client ids, or "
        "named in fetches, beside those with lanes: `accept.range.fetch`, by default false.",
    )
    refuse_individual_commit: tuple[str, ...] = Field(
        default=(),
        description="Client ids (or globs) that take whole partitions only: their "
        "`allow.individual.commit` is false.",
    )
    idle_timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="A client connection that is idle for this time is closed, as with "
        "Kafka's `connections.max.idle.ms`.",
    )
    unread_timeout_s: float = Field(
        default=600.0,
        gt=0,
        description="A client that takes nothing of its answers for this time is closed. Brokers "
        "count such a client as idle, after `connections.max.idle.ms`.",
    )
    frame_timeout_s: float = Field(
        default=30.0, gt=0, description="A request must arrive whole within this time."
    )
    drain_timeout_s: float = Field(
        default=10.0, ge=0, description="Time for requests in progress when the proxy stops."
    )
    authorization_ttl_s: float = Field(
        default=10.0, ge=0, description="Time for which a client's right to READ is remembered."
    )
    offsets_age_ms_max: int = Field(
        default=100,
        ge=0,
        description="ListOffsets is answered from Fetch answers of at most this age.",
    )
    offsets_refresh_s: float = Field(
        default=43_200.0,
        gt=0,
        description="Interval at which stable offsets of running groups are committed again, so "
        "that none expires; at most a quarter of the brokers' `offsets.retention.minutes`, if that "
        "is known.",
    )
    forget_interval_s: float = Field(
        default=86_400.0,
        gt=0,
        description="Interval at which brokers are asked whether groups and topics with state in "
        "keylane still exist. State of a group or topic that is surely gone in two such checks in "
        "a row is forgotten, in memory and in the journal.",
    )
    individual_commits_max: int = Field(
        default=100_000,
        ge=1,
        description="`max.individual.commits`: committed ranges per group and partition. A commit "
        "of more is refused with REBALANCE_IN_PROGRESS (in a tagged field: "
        "MAX_INDIVIDUAL_COMMIT_REACHED), so that members join again and one that never commits "
        "is found out.",
    )
    strict_offset_ranges: bool = Field(
        default=False,
        description="Refuse a commit that has offset ranges and an offset other than -1. By "
        "default the offset is ignored.",
    )
    journal_whole: bool = Field(
        default=False,
        description="Write positions to the journal whole with each commit, and write loaded ones "
        "again in that form, so that a keylane from before steps can read them: for the way back "
        "to such a version.",
    )
    filter_threads: int = Field(
        default=0, ge=0, description="Threads that decompress and split; 0 is one per core."
    )
    client_id: str = Field(default="keylane", description="Client id of the service connections.")
    node: int | None = Field(
        default=None,
        ge=0,
        le=NODE_NUMBER_MAX,
        description="Number of this node; each node in front of the same cluster has a different "
        "one. When left out, it is the only node.",
    )
    node_session_timeout_ms: int = Field(
        default=10_000,
        ge=1_000,
        le=300_000,
        description="Time for which a node may be silent before the other nodes take over its "
        "groups. Brokers allow `group.min.session.timeout.ms` (6000) and more.",
    )
    beside_others: bool = Field(
        default=False,
        description="Start a node without a number beside others. They do not see each other's "
        "commits: for trials with groups that no other node serves.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=WORKERS_MAX,
        description="Number of nodes that one command runs on this machine, to use its cores. They "
        "share the port of `listen`; `node` is the number of the first.",
    )
    worker_port_step: int = Field(
        default=100,
        ge=1,
        description="Distance between the brokers' listeners of two workers: those of worker w are "
        "w times this further up, and its control port is w ports further up.",
    )
    broker_ports_from: Port | None = Field(
        default=None,
        description="Port of the listener for broker 0. When left out, the port of `listen` + 1.",
    )
    share_port: bool = Field(
        default=False,
        description="Set it if other nodes on this machine listen on the port of `listen`, too "
        "(SO_REUSEPORT). Workers have it set.",
    )
    connection_max_age_s: float = Field(
        default=0.0,
        ge=0,
        description="Age at which connections of clients end between two requests, a tenth more or "
        "less, so that new nodes get their share; 0: never.",
    )

    @field_validator("bootstrap", "listen", "control")
    @classmethod
    def _addresses_are_legal(cls, value: str | None) -> str | None:
        for address in (value or "").split(",") if value is not None else ():
            split_address(address)
        return value

    @field_validator("advertise_pattern")
    @classmethod
    def _advertised_addresses_are_legal(cls, value: str | None) -> str | None:
        if not value:
            return None
        host, port = split_address(value)
        if host.count("{broker}") != 1 or host.count("{node}") > 1:
            raise ValueError("needs {broker} once, and {node} once at most, in its host name")
        example = _fill_pattern(host, node=NODE_NUMBER_MAX, broker_id=2**31 - 1)
        if not LEGAL_HOST.fullmatch(example):
            raise ValueError(f"gives names that are no host names, such as {example}")
        if not port:
            raise ValueError("needs a port that clients can get")
        return value

    @field_validator("lane_name_pattern")
    @classmethod
    def _pattern_is_legal(cls, value: str | None) -> str | None:
        if not value:
            return None
        if value.count("{topic}") != 1 or value.count("{lanes}") != 1:
            raise ValueError("needs {topic} and {lanes} once each")
        example = value.replace("{topic}", "t").replace("{lanes}", "1")
        if not LEGAL_TOPIC.fullmatch(example):
            raise ValueError("gives names that Kafka refuses")
        return value

    @model_validator(mode="after")
    def _is_guarded(self) -> Self:
        if self.control is not None:
            expect_control_guard(self, split_address(self.control)[0])
        if self.node is not None or self.workers > 1:
            reported = (self.listen, self.advertise_pattern or "localhost:0")
            hosts = [split_address(address)[0] for address in reported]
            expect_node_secret(self, [*hosts, self.advertised_host])
        return self

    @model_validator(mode="after")
    def _workers_have_ports(self) -> Self:
        if self.workers > 1 and split_address(self.listen)[1] == 0:
            raise ValueError("listen: workers share a port, which must be given")
        if self.workers > 1 and (self.node or 0) + self.workers > NODE_NUMBER_MAX + 1:
            raise ValueError(f"workers: node numbers go up to {NODE_NUMBER_MAX}")
        return self

    @model_validator(mode="after")
    def _one_way_to_advertise(self) -> Self:
        if self.advertise_pattern is not None and self.advertise_port is not None:
            raise ValueError("advertise_pattern: has the port, leave advertise_port out")
        if self.advertise_port_step and self.advertise_port is None:
            raise ValueError("advertise_port_step: needs advertise_port")
        if self.advertise_port is not None:
            self.advertised_bootstrap(0)
        return self

    def group_rule(self, group: str) -> GroupRule | None:
        """Return the first rule that fits the group."""
        return next((rule for rule in self.groups if rule.matches(group)), None)

    def has_client_assignor(self, group: str) -> bool:
        """Return whether a rule keeps the assignor of a group's clients."""
        rule = self.group_rule(group)
        return rule is not None and rule.assignor == "client"

    @property
    def advertised_host(self) -> str:
        """Return the host that clients connect to."""
        return self.advertise or split_address(self.listen)[0]

    def advertised_bootstrap(self, bound_port: int) -> tuple[str, int]:
        """Return bootstrap host and port for clients. Raises: ValueError (beyond 65535)."""
        if self.advertise_pattern is not None:
            return self.advertised_host, split_address(self.advertise_pattern)[1]
        if self.advertise_port is None:
            return self.advertised_host, bound_port
        return self.advertised_host, self._advertised_port(0)

    def advertised_broker(self, broker_id: int, bound_port: int) -> tuple[str, int]:
        """Return host and port of a broker for clients. Raises: ValueError (beyond 65535)."""
        if self.advertise_pattern is not None:
            host, port = split_address(self.advertise_pattern)
            return _fill_pattern(host, node=self.node or 0, broker_id=broker_id), port
        if self.advertise_port is None:
            return self.advertised_host, bound_port
        return self.advertised_host, self._advertised_port(1 + broker_id)

    def _advertised_port(self, offset: int) -> int:
        first = (self.advertise_port or 0) + self.advertise_port_step * (self.node or 0)
        if first + offset > PORT_MAX:
            raise ValueError(f"advertise_port: {first} + {offset} is beyond {PORT_MAX}")
        return first + offset

    def broker_port(self, broker_id: int) -> int:
        """Return the port of the listener for an upstream broker; 0: any free one."""
        port = split_address(self.listen)[1]
        if self.broker_ports_from is not None:
            return self.broker_ports_from + broker_id
        return port + 1 + broker_id if port else 0


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` (IPv6 in brackets). Raises: ValueError."""
    host, _, port = address.strip().rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= PORT_MAX:
        raise ValueError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def _fill_pattern(pattern: str, *, node: int, broker_id: int) -> str:
    return pattern.replace("{node}", str(node)).replace("{broker}", str(broker_id))
