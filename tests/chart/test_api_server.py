"""A real API server takes the chart: each object, `helm install`, an upgrade that keeps secrets.

Beside it stand the real definitions of the Prometheus operator, Gateway API, KEDA and Kubeflow's
Spark operator.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tools.go_tools import GoToolMissing, download_module

from .api_server import ApiServer, Refused
from .rendering import CHART, MINIMAL, NAMESPACE, VALUE_SETS, Renderer, RenderFailed, find
from .test_spark_examples import DEFINITIONS as SPARK_DEFINITIONS
from .test_spark_examples import KINDS as SPARK_KINDS
from .test_spark_examples import SPARK_OPERATOR, objects

pytestmark = [
    pytest.mark.long,  # schemas say the same without a server, which takes minutes to build
    pytest.mark.timeout(4000),
]
DEFINITIONS: Final = {
    (
        "github.com/kedacore/keda/v2@v2.21.0",
        "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
    ): ("config/crd/bases/keda.sh_scaledobjects.yaml",),
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    ): (
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    (
        "sigs.k8s.io/gateway-api@v1.6.3",
        "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=",
    ): ("config/crd/standard/gateway.networking.k8s.io_tlsroutes.yaml",),
    SPARK_OPERATOR: tuple(SPARK_DEFINITIONS.format(kind.lower()) for kind in SPARK_KINDS),
}
"""CustomResourceDefinitions by the Go module that has them, with go's sum of it."""
SPARK_NAMESPACE: Final = "spark"
EXAMPLES: Final = sorted((CHART / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with all definitions; skips where it cannot be built."""
    try:
        crds = [
            download_module(*module) / path
            for module, paths in DEFINITIONS.items()
            for path in paths
        ]
        planned = ApiServer(tmp_path_factory.mktemp("kubernetes"))
    except GoToolMissing as error:
        pytest.skip(f"no API server: {error}")
    with planned as running:
        for crd in crds:
            running.install_crd(crd)
        for name in (NAMESPACE, SPARK_NAMESPACE):
            running.create(namespace(name), "")
        yield running


def namespace(name: str) -> dict[str, object]:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


@pytest.mark.parametrize("values", VALUE_SETS, ids=lambda path: path.stem)
def test_every_object_is_taken(values: Path, server: ApiServer, chart: Renderer) -> None:
    """Each object of each set of values, hooks too, passes admission with strict fields."""
    objects = chart.template(values)

    taken = [server.create(one, NAMESPACE, dry_run=True) for one in objects]

    assert [(one["kind"], one["metadata"]["name"]) for one in taken] == [
        (one["kind"], one["metadata"]["name"]) for one in objects
    ]
    assert len(taken) >= 6


@pytest.mark.parametrize("values", VALUE_SETS, ids=lambda path: path.stem)
def test_helm_installs_in_a_dry_run(values: Path, server: ApiServer, chart: Renderer) -> None:
    """`helm install --dry-run=server` takes each set, for the version that the server reports."""
    out = chart.release(
        "install", server.kubeconfig, "--namespace", NAMESPACE, "--dry-run=server",
        "--values", str(values),
    )  # fmt: skip

    assert "STATUS: pending-install" in out
    assert "kind: StatefulSet" in out


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_taken(example: Path, server: ApiServer) -> None:
    """Objects of examples/ pass the definitions of KEDA and Kubernetes."""
    objects = [one for one in yaml.safe_load_all(example.read_text(encoding="utf-8")) if one]
    kubernetes = [one for one in objects if "kind" in one]

    for one in kubernetes:
        assert server.create(one, NAMESPACE, dry_run=True)["kind"] == one["kind"]

    assert EXAMPLES


@pytest.mark.parametrize("name", ["rbac", "audit", "totals"])
def test_every_object_of_the_spark_example_is_taken(name: str, server: ApiServer) -> None:
    """docs/examples/spark passes the Spark operator's definitions, their rules too."""
    taken = [server.create(one, SPARK_NAMESPACE, dry_run=True) for one in objects(name)]

    assert {one["metadata"]["namespace"] for one in taken} == {SPARK_NAMESPACE}


def test_the_server_sees_a_mistyped_field(server: ApiServer, chart: Renderer) -> None:
    """A field that Kubernetes does not have is refused by name, so the others were read."""
    broken = find(chart.template(), "StatefulSet")
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}

    with pytest.raises(Refused, match="readinesProbe"):
        server.create(broken, NAMESPACE, dry_run=True)


def test_helm_refuses_a_mistyped_key(server: ApiServer, chart: Renderer) -> None:
    """`--set config.lanez=1` ends the install, and nothing is created."""
    with pytest.raises(RenderFailed, match="additional properties 'lanez' not allowed"):
        chart.release(
            "install", server.kubeconfig, "--namespace", NAMESPACE,
            "--set", "config.bootstrap=kafka:9092", "--set", "config.lanez=1",
        )  # fmt: skip

    assert server.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets")["items"] == []


def test_an_upgrade_keeps_what_is_random(
    server: ApiServer, chart: Renderer, tmp_path: Path
) -> None:
    """Tokens and the nodes' secret are those of the install after an upgrade with other values."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(yaml.safe_dump(dict(MINIMAL)))
    second.write_text(yaml.safe_dump({**MINIMAL, "replicas": 3}))
    place = "/api/v1/namespaces/upgrade/secrets/keylane-{}"

    def secrets() -> dict[str, str]:
        found = [server.get(place.format(name))["data"] for name in ("control", "nodes")]
        return {key: base64.b64decode(data[key]).decode() for data in found for key in data}

    # Hooks wait for a controller.
    options = ("--namespace", "upgrade", "--create-namespace", "--no-hooks", "--values")
    chart.release("install", server.kubeconfig, *options, str(first))
    installed = secrets()
    chart.release("upgrade", server.kubeconfig, *options, str(second))

    assert secrets() == installed
    assert installed.keys() == {"token", "read-token", "node-secret"}
    node = server.get("/apis/apps/v1/namespaces/upgrade/statefulsets/keylane")
    assert node["spec"]["replicas"] == 3
