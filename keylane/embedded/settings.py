"""Server properties of an embedded node: what a broker of a test or a demo is set to.

Source: Kafka documentation, "Broker Configs"; KIP-631 (combined mode).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

ADDRESS: Final = "127.0.0.1"
"""Address of embedded nodes: an unsecured broker must not be reachable from elsewhere."""

DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # A group of one broker has no rebalance storm to wait for (Kafka's default is 3 s).
        "group.initial.rebalance.delay.ms": "0",
        # Each internal partition costs files and start-up time; Kafka's default is 50.
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.num.partitions": "3",
        # The cleaner reserves this much at start; Kafka's default of 128 MiB is a quarter
        # of the heap given here.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024**2),
        "num.network.threads": "2",
        "num.io.threads": "4",
        # A killed node may register again only when its old session has run out: this is what
        # a restart after kill -9 waits for (Kafka's default is 9 s).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
)


@dataclass(frozen=True, slots=True)
class ClientListener:
    """One more listener for clients; the first is always PLAINTEXT, for the nodes themselves too.

    How it is secured stands in properties that start with `listener.name.<name in lower case>.`.
    """

    name: str
    """In capitals, such as SECURED."""
    protocol: str
    """SASL_SSL, SSL, SASL_PLAINTEXT or PLAINTEXT."""
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """One node of an embedded cluster: a broker and a controller in one process."""

    node_id: int
    """1, 2, 3: unique in the cluster."""
    folder: Path
    """Holds server.properties, kafka.log and the folder `data`."""
    port: int
    """Port that clients connect to."""
    controller_port: int
    """Port at which the nodes of the cluster agree on metadata."""
    listeners: tuple[ClientListener, ...] = ()
    """Beside the first one."""

    @property
    def address(self) -> str:
        """`host:port` that clients connect to."""
        return f"{ADDRESS}:{self.port}"

    @property
    def properties_path(self) -> Path:
        """The node's `server.properties`."""
        return self.folder / "server.properties"

    @property
    def log_path(self) -> Path:
        """Everything the node's process prints."""
        return self.folder / "kafka.log"

    @property
    def data_path(self) -> Path:
        """Kafka's own `log.dirs`."""
        return self.folder / "data"


def build_properties(
    node: NodeSettings, nodes: Sequence[NodeSettings], extra: Mapping[str, str]
) -> str:
    """Text of the `server.properties` of `node` in a cluster of `nodes`; `extra` wins."""
    replication = str(min(3, len(nodes)))
    in_sync_min = str(min(2, len(nodes)))
    clients = (ClientListener("PLAINTEXT", "PLAINTEXT", node.port), *node.listeners)
    addresses = ",".join(f"{each.name}://{ADDRESS}:{each.port}" for each in clients)
    protocols = ",".join(f"{each.name}:{each.protocol}" for each in clients)
    voters = ",".join(f"{other.node_id}@{ADDRESS}:{other.controller_port}" for other in nodes)
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{addresses},CONTROLLER://{ADDRESS}:{node.controller_port}",
        "advertised.listeners": addresses,
        "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
        "log.dirs": str(node.data_path),
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": in_sync_min,
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        **DEFAULTS,
        **extra,
    }
    return "".join(f"{key}={value}\n" for key, value in properties.items())
