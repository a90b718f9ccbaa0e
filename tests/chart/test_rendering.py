"""Every set of values of ci/: Helm renders it, Kubernetes' schemas take it, keylane reads it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml

from keylane import __version__
from keylane.config.sources import load_config
from keylane.proxy.runtime.memory_limit import CGROUP_SHARE
from keylane.proxy.runtime.memory_plan import LOGIN_KEY, PARTS, plan_memory

from .rendering import (
    CHART,
    VALUE_SETS,
    Object,
    Renderer,
    configuration,
    find,
    node_container,
    node_pod,
)

pytestmark = pytest.mark.timeout(1000)  # Helm may have to be built first
KUBERNETES_VERSIONS: Final = ("1.28", "1.34")
"""The oldest that the chart takes, and a newer one."""
OPERATOR: Final = json.loads(
    (Path(__file__).parent / "schemas" / "prometheus_operator.json").read_text(encoding="utf-8")
)
GATEWAY: Final = json.loads(
    (Path(__file__).parent / "schemas" / "gateway_api.json").read_text(encoding="utf-8")
)
SCHEMAS: Final = {"monitoring.coreos.com": OPERATOR, "gateway.networking.k8s.io": GATEWAY}
"""Schemas of objects that are not Kubernetes' own, by group."""
MEBIBYTE: Final = 1024**2
LEAVE_S: Final = 10
"""Seconds to leave the other nodes, and to publish the last scan."""


@pytest.mark.parametrize("values", VALUE_SETS, ids=lambda path: path.stem)
def test_helm_lint_has_nothing_to_say(values: Path, chart: Renderer) -> None:
    """`helm lint --strict` takes each set of values."""
    said = chart.lint(values)

    assert "0 chart(s) failed" in said


def test_every_object_fits_its_schema(rendered: list[Object]) -> None:
    """Every object passes the strict schema of Kubernetes, the operator or Gateway API."""
    for one in rendered:
        foreign = SCHEMAS.get(one["apiVersion"].split("/")[0])
        if foreign is not None:
            schema = {"$ref": f"#/$defs/{one['kind']}", "$defs": foreign["$defs"]}
            jsonschema.validate(one, schema)
            continue
        for version in KUBERNETES_VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)

    assert len(rendered) >= 6


def test_the_schemas_see_a_mistyped_field(rendered: list[Object]) -> None:
    """Strict schemas refuse a field that Kubernetes would drop without a word."""
    broken = find(rendered, "StatefulSet")
    broken = json.loads(json.dumps(broken))
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(broken, KUBERNETES_VERSIONS[-1], strict=True)


def test_names_are_unique_and_short(rendered: list[Object]) -> None:
    """No two objects of a kind share a name, and each name fits a DNS label."""
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered]

    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, name in names)


def test_keylane_reads_the_configuration(rendered: list[Object], tmp_path: Path) -> None:
    """The rendered file and variables make a `ProxyConfig`; ports are those of the container."""
    path = tmp_path / "keylane.yaml"
    path.write_text(configuration(rendered))
    container = node_container(rendered)
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}

    config = load_config(
        path=path,
        environment={key: value for key, value in environment.items() if value is not None},
        flags={},
    ).config

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config.listen == f"0.0.0.0:{ports['kafka']}"
    assert config.control == f"0.0.0.0:{ports['control']}"
    assert config.advertise == environment["KEYLANE_ADVERTISE"]


def test_a_port_is_open_for_every_broker(rendered: list[Object]) -> None:
    """Container and Services name port + 1 + id of each broker, where keylane listens."""
    ports = {port["name"]: port["containerPort"] for port in node_container(rendered)["ports"]}
    brokers = {name: port for name, port in ports.items() if name.startswith("broker-")}
    services = [one for one in rendered if one["kind"] == "Service"]

    assert brokers
    for name, port in brokers.items():
        assert port == ports["kafka"] + 1 + int(name.removeprefix("broker-"))
    for service in services:
        for port in service["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]] == ports[port["name"]]


def test_services_and_policies_select_the_node(rendered: list[Object]) -> None:
    """Selectors are a part of the pod's labels, and no other pod has them all."""
    labels = node_pod(rendered)["metadata"]["labels"].items()
    others = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in rendered
        if one["kind"] == "Deployment"
    ]
    others += [one["metadata"]["labels"] for one in rendered if one["kind"] == "Pod"]
    selectors: list[Any] = []
    for one in rendered:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            selectors.append(spec["selector"])
        elif one["kind"] in {"PodDisruptionBudget", "StatefulSet"}:
            selectors.append(spec["selector"]["matchLabels"])
        elif one["kind"] == "NetworkPolicy":
            selectors.append(spec["podSelector"]["matchLabels"])

    assert len(selectors) >= 4
    for selector in selectors:
        own = {k: v for k, v in selector.items() if k != "statefulset.kubernetes.io/pod-name"}
        assert own.items() <= labels
        assert not any(own.items() <= other.items() for other in others)


def test_memory_fits_the_bounds(rendered: list[Object], tmp_path: Path) -> None:
    """keylane starts within 15/16 of the limit, with nothing lowered; the limit is requested."""
    path = tmp_path / "keylane.yaml"
    path.write_text(configuration(rendered))
    config = load_config(path=path, environment={}, flags={}).config
    resources = node_container(rendered)["resources"]
    limit = resources["limits"]["memory"]
    cpus = math.ceil(float(resources["requests"]["cpu"]))

    assert limit.endswith("Mi")
    memory_max = int(limit.removesuffix("Mi")) * MEBIBYTE * CGROUP_SHARE[0] // CGROUP_SHARE[1]
    plan = plan_memory(config, memory_max, processors=cpus)

    assert plan.bounds["cache_bytes_max"] == config.cache_bytes_max
    assert plan.bounds["filter_threads"] == (config.filter_threads or cpus)
    assert plan.login_bytes_max == PARTS[LOGIN_KEY].default
    assert memory_max - sum(plan.costs.values()) < 2 * MEBIBYTE, "and there is no more than that"
    assert resources["requests"]["memory"] == limit
    assert "cpu" in resources["requests"]
    assert "cpu" not in resources["limits"]


def test_kubernetes_waits_for_the_drain(rendered: list[Object], tmp_path: Path) -> None:
    """The grace period holds preStop, leaving, the drain and the close of the journal."""
    path = tmp_path / "keylane.yaml"
    path.write_text(configuration(rendered))
    config = load_config(path=path, environment={}, flags={}).config
    stop = node_container(rendered).get("lifecycle", {}).get("preStop")

    grace_s = node_pod(rendered)["spec"]["terminationGracePeriodSeconds"]

    before_s = int(stop["exec"]["command"][1]) if stop else 0
    assert grace_s >= before_s + config.drain_timeout_s + 30 + LEAVE_S


def test_nothing_runs_as_root(rendered: list[Object]) -> None:
    """Every container: not root, no new rights, no capability, read-only root, no token."""
    pods = [
        one["spec"]["template"]["spec"] for one in rendered if "template" in one.get("spec", {})
    ]
    pods += [one["spec"] for one in rendered if one["kind"] == "Pod"]

    assert len(pods) >= 2
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_versions_are_keylanes() -> None:
    """appVersion, which the image's tag is taken from, is the package's version."""
    reported = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert reported["appVersion"] == __version__
