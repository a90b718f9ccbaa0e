"""keylane/embedded/node.py: what a node of a cluster of one and of three is set to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keylane.embedded.node import ClientListener, NodeSettings, build_properties


def make_node(node_id: int) -> NodeSettings:
    """A node with ports that show its id."""
    return NodeSettings(
        node_id=node_id,
        folder=Path(f"/data/node-{node_id}"),
        port=9000 + node_id,
        controller_port=9100 + node_id,
    )


def read_properties(text: str) -> dict[str, str]:
    """The properties of a file's text."""
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(("node_count", "replicas", "in_sync"), [(1, "1", "1"), (3, "3", "2")])
def test_replication_fits_the_cluster(node_count: int, replicas: str, in_sync: str) -> None:
    """Internal topics have a replica on each of up to three nodes, and survive one node."""
    nodes = [make_node(number + 1) for number in range(node_count)]

    properties = read_properties(build_properties(nodes[0], nodes, {}))

    assert properties["offsets.topic.replication.factor"] == replicas
    assert properties["transaction.state.log.min.isr"] == in_sync


def test_clients_and_controllers_have_ports_of_their_own() -> None:
    """Clients get the client port; every node votes by its controller port."""
    nodes = [make_node(1), make_node(2), make_node(3)]

    properties = read_properties(build_properties(nodes[1], nodes, {}))

    assert properties["node.id"] == "2"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9002"
    assert properties["controller.quorum.voters"] == (
        "1@127.0.0.1:9101,2@127.0.0.1:9102,3@127.0.0.1:9103"
    )


def test_the_users_properties_win() -> None:
    """A property that is given replaces keylane's own, and may be new."""
    extra = {"offsets.topic.num.partitions": "50", "auto.create.topics.enable": "false"}

    properties = read_properties(build_properties(make_node(1), [make_node(1)], extra))

    assert properties["offsets.topic.num.partitions"] == "50"
    assert properties["auto.create.topics.enable"] == "false"


def test_further_listeners() -> None:
    """They are bound and advertised beside the first; nodes talk over the first as before."""
    node = replace(make_node(1), listeners=(ClientListener("SECURED", "SASL_SSL", 9501),))

    properties = read_properties(build_properties(node, [node], {}))

    addresses = "PLAINTEXT://127.0.0.1:9001,SECURED://127.0.0.1:9501"
    assert properties["advertised.listeners"] == addresses
    assert properties["listeners"] == addresses + ",CONTROLLER://127.0.0.1:9101"
    protocols = "PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL,CONTROLLER:PLAINTEXT"
    assert properties["listener.security.protocol.map"] == protocols
