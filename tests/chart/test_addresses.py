"""Advertised addresses lead to the right node and broker, for every set of values of ci/."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from keylane.config.node import ProxyConfig, split_address
from keylane.config.sources import load_config

from .rendering import (
    MINIMAL,
    NAMESPACE,
    Object,
    Renderer,
    configuration,
    find,
    node_container,
    node_numbers,
)

pytestmark = pytest.mark.timeout(1000)  # Helm may have to be built first
HOST_IP: Final = "192.0.2.7"
DNS_OF: Final = "external-dns.alpha.kubernetes.io/hostname"
VARIABLE: Final = re.compile(r"\$\((\w+)\)")
INSIDE: Final = f".{NAMESPACE}.svc.cluster.local"

Place = tuple[str, int]
"""Name of a pod, and the port of its container."""


def variables_of(container: Object, pod: str) -> dict[str, str]:
    """Variables of a container in the pod of this name, as a kubelet fills them in."""
    fields = {
        "metadata.name": pod,
        "metadata.labels['apps.kubernetes.io/pod-index']": pod.rpartition("-")[2],
        "status.podIP": "192.0.2.8",
        "status.hostIP": HOST_IP,
    }
    variables: dict[str, str] = {}
    for entry in container["env"]:
        source = entry.get("valueFrom", {})
        value = entry.get("value")
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        if value is not None:
            parts = VARIABLE.split(value)
            parts[1::2] = [variables[name] for name in parts[1::2]]
            variables[entry["name"]] = "".join(parts)
    return variables


def nodes(objects: list[Object], folder: Path) -> Iterator[tuple[str, ProxyConfig]]:
    """Name of each pod that may be, and the configuration that keylane makes of it there."""
    path = folder / "keylane.yaml"
    path.write_text(configuration(objects))
    full = find(objects, "StatefulSet")["metadata"]["name"]
    for number in node_numbers(objects):
        variables = variables_of(node_container(objects), f"{full}-{number}")
        known = {
            name: value
            for name, value in variables.items()
            if name.removeprefix("KEYLANE_").lower() in ProxyConfig.model_fields
        }
        yield f"{full}-{number}", load_config(path=path, environment=known, flags={}).config


def lead(objects: list[Object], host: str, port: int) -> Place:
    """Return the end of a connection to an address, by DNS, gateway and Services as rendered."""
    full = find(objects, "StatefulSet")["metadata"]["name"]
    services = {one["metadata"]["name"]: one for one in objects if one["kind"] == "Service"}
    route = routes(objects).get(host)
    if route is not None:
        return through(objects, services[route[0]], route[1])
    if host == HOST_IP:
        found = [
            (service, entry["port"])
            for service in services.values()
            for entry in service["spec"]["ports"]
            if entry.get("nodePort") == port
        ]
        assert len(found) == 1, f"node port {port} is of {len(found)} Services"
        return through(objects, *found[0])
    if host.endswith(f".{full}-headless{INSIDE}"):
        place = through(objects, services[f"{full}-headless"], port)
        return host.partition(".")[0], place[1]
    for name, service in services.items():
        reported = service["metadata"].get("annotations", {}).get(DNS_OF)
        if host in (name + INSIDE, reported):
            return through(objects, service, port)
    raise AssertionError(f"{host} leads nowhere")


def routes(objects: list[Object]) -> Mapping[str, Place]:
    """Service and port by the name that a client asks a gateway for."""
    found: dict[str, Place] = {}
    for one in objects:
        if one["kind"] == "TLSRoute":
            (host,) = one["spec"]["hostnames"]
            (rule,) = one["spec"]["rules"]
            (backend,) = rule["backendRefs"]
            assert host not in found
            found[host] = (backend["name"], backend["port"])
        elif one["kind"] == "Ingress":
            for rule in one["spec"]["rules"]:
                (path,) = rule["http"]["paths"]
                backend = path["backend"]["service"]
                assert rule["host"] not in found
                found[rule["host"]] = (backend["name"], backend["port"]["number"])
    return found


def through(objects: list[Object], service: Object, port: int) -> Place:
    """The pod behind a port of a Service ("" is any), and the port of its container."""
    ports = {entry["port"]: entry["targetPort"] for entry in service["spec"]["ports"]}
    named = {entry["name"]: entry["containerPort"] for entry in node_container(objects)["ports"]}
    pod = service["spec"]["selector"].get("statefulset.kubernetes.io/pod-name", "")
    return pod, named[ports[port]]


def test_every_address_leads_to_its_node_and_broker(rendered: list[Object], tmp_path: Path) -> None:
    """For all nodes that may be, and all brokers: the listener behind it is the broker's there."""
    names = [entry["name"] for entry in node_container(rendered)["ports"]]
    brokers = [int(name.partition("-")[2]) for name in names if name.startswith("broker-")]
    seen: set[tuple[str, int]] = set()
    for pod, config in nodes(rendered, tmp_path):
        for broker in brokers:
            bound = config.broker_port(broker)
            address = config.advertised_broker(broker, bound)
            assert address not in seen, f"{address} is advertised twice"
            seen.add(address)
            assert lead(rendered, *address) == (pod, bound)

    assert len(seen) >= len(brokers)


def test_bootstrap_leads_to_bootstrap(rendered: list[Object], tmp_path: Path) -> None:
    """The bootstrap address of every node ends at its listener for that, or at any node's."""
    for pod, config in nodes(rendered, tmp_path):
        bound = split_address(config.listen)[1]

        place = lead(rendered, *config.advertised_bootstrap(bound))

        assert place in ((pod, bound), ("", bound))


def test_nodes_reach_each_others_control_port(rendered: list[Object], tmp_path: Path) -> None:
    """Nodes name the pod's own address in the headless Service, whatever they advertise."""
    for pod, config in nodes(rendered, tmp_path):
        port = split_address(str(config.control))[1]

        assert config.control_advertise is not None
        assert lead(rendered, config.control_advertise, port) == (pod, port)


def test_numbers_are_the_pods_own(rendered: list[Object], tmp_path: Path) -> None:
    """Each node has the number that its pod's name ends with, one alone as well."""
    numbers = [(pod, config.node) for pod, config in nodes(rendered, tmp_path)]

    assert numbers
    for pod, number in numbers:
        assert number == int(pod.rpartition("-")[2])


def test_a_node_without_a_number(chart: Renderer, tmp_path: Path) -> None:
    """`nodes.numbered: false` is the lone node, which looks for no others."""
    objects = chart.template({**MINIMAL, "nodes": {"numbered": False}})

    ((_, config),) = nodes(objects, tmp_path)

    assert config.node is None
