"""Many nodes: joining and leaving, the objects of each, and the autoscaler."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from .rendering import MINIMAL, Object, Renderer, find, node_container, node_numbers, node_pod

pytestmark = pytest.mark.timeout(1000)  # Helm may have to be built first


def render(chart: Renderer, **values: Any) -> list[Object]:
    """The least values, and these."""
    return chart.template({**MINIMAL, **values})


def test_another_node_restarts_no_node(chart: Renderer) -> None:
    """From 1 to 5 nodes and to an autoscaler, with Services per node: the pods stay the same."""
    nodes = {"serviceType": "NodePort"}
    one = render(chart, nodes=nodes)
    five = render(chart, nodes=nodes, replicas=5)
    scaled = render(chart, nodes=nodes, autoscaling={"enabled": True})

    assert node_pod(one) == node_pod(five) == node_pod(scaled)


def test_a_service_for_every_node_that_may_be(chart: Renderer) -> None:
    """Each node has its Service, also one that only the autoscaler will make."""
    objects = render(
        chart, nodes={"serviceType": "ClusterIP"}, autoscaling={"enabled": True, "maxReplicas": 4}
    )

    names = {one["metadata"]["name"] for one in objects if one["kind"] == "Service"}

    assert node_numbers(objects) == [0, 1, 2, 3]
    assert {f"keylane-node-{number}" for number in range(4)} <= names


def test_one_by_one(rendered: list[Object]) -> None:
    """A roll-out takes one node at a time, and an eviction one at most; all start at once."""
    spec = find(rendered, "StatefulSet")["spec"]
    budget = find(rendered, "PodDisruptionBudget")["spec"]

    assert spec["updateStrategy"]["type"] == "RollingUpdate"
    assert "maxUnavailable" not in spec["updateStrategy"]["rollingUpdate"]
    assert spec["minReadySeconds"] >= 15
    assert spec["podManagementPolicy"] == "Parallel"
    assert budget["maxUnavailable"] in (0, 1)


def test_nodes_are_kept_apart(rendered: list[Object]) -> None:
    """Zones and machines get equal numbers of this release's nodes."""
    labels = node_pod(rendered)["metadata"]["labels"].items()

    spread = node_pod(rendered)["spec"]["topologySpreadConstraints"]

    assert {one["topologyKey"] for one in spread} == {
        "topology.kubernetes.io/zone",
        "kubernetes.io/hostname",
    }
    for one in spread:
        assert one["maxSkew"] == 1
        assert one["labelSelector"]["matchLabels"].items() <= labels


def test_the_autoscaler_scales_the_nodes(chart: Renderer) -> None:
    """By CPU, which is requested; the StatefulSet then has no count that an upgrade would set."""
    objects = render(chart, autoscaling={"enabled": True, "minReplicas": 3, "maxReplicas": 9})

    scaler = find(objects, "HorizontalPodAutoscaler")["spec"]
    target = find(objects, "StatefulSet")

    assert scaler["scaleTargetRef"]["kind"] == "StatefulSet"
    assert scaler["scaleTargetRef"]["name"] == target["metadata"]["name"]
    assert "replicas" not in target["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 9)
    assert scaler["metrics"][0]["resource"]["name"] == "cpu"
    assert scaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600
    assert "cpu" in node_container(objects)["resources"]["requests"]


def test_policies_let_clients_in_to_every_broker(chart: Renderer) -> None:
    """The network policy has bootstrap and all brokers' ports for clients, and no control port."""
    objects = render(chart, brokers={"ids": [4, 7]}, networkPolicy={"enabled": True})

    clients, control = find(objects, "NetworkPolicy")["spec"]["ingress"]

    assert [entry["port"] for entry in clients["ports"]] == ["kafka", "broker-4", "broker-7"]
    assert [entry["port"] for entry in control["ports"]] == ["control"]


def test_every_pod_is_scraped_under_its_own_name(chart: Renderer) -> None:
    """The monitor selects the headless Service, which has every pod; `instance` is the pod."""
    objects = render(chart, replicas=3, serviceMonitor={"enabled": True})

    monitor = find(objects, "ServiceMonitor")["spec"]
    service = find(objects, "Service", "keylane-headless")

    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"
    assert monitor["endpoints"][0]["relabelings"] == [
        {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"}
    ]


def test_helm_test_asks_every_node(chart: Renderer) -> None:
    """The pod of `helm test` has the address of each node that there is at least."""
    objects = render(
        chart, nodes={"firstNumber": 5}, autoscaling={"enabled": True, "minReplicas": 2}
    )
    pod = find(objects, "Pod")["spec"]["containers"][0]

    variables = {entry["name"]: entry["value"] for entry in pod["env"]}

    assert variables["READY_URLS"].split() == [
        f"http://keylane-{number}.keylane-headless.prod.svc.cluster.local:19090/readyz"
        for number in (5, 6)
    ]


def test_helm_test_names_the_node_that_is_not_ready(chart: Renderer) -> None:
    """Its script, run here, ends with the address that does not answer."""
    script = find(render(chart), "Pod")["spec"]["containers"][0]["command"][2]
    reported = {"READY_URLS": "http://127.0.0.1:1/readyz", "BOOTSTRAP": "", "TIMEOUT_S": "0"}

    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **reported},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert "not ready: http://127.0.0.1:1/readyz" in done.stderr


def test_annotations_of_single_nodes(chart: Renderer) -> None:
    """Each node's Service has the common annotations with its number, and its own over them."""
    nodes = {
        "serviceType": "LoadBalancer",
        "advertise": "k$(POD_INDEX).x",
        "annotations": {"name": "k$(POD_INDEX).x", "pool": "common"},
        "annotationsByNode": [{"pool": "first"}],
        "firstNumber": 3,
    }

    objects = render(chart, replicas=2, nodes=nodes)

    assert find(objects, "Service", "keylane-node-3")["metadata"]["annotations"] == {
        "name": "k3.x",
        "pool": "first",
    }
    assert find(objects, "Service", "keylane-node-4")["metadata"]["annotations"] == {
        "name": "k4.x",
        "pool": "common",
    }
