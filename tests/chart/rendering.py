"""Render the chart with the real Helm, and find objects in the result."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.programs import find_or_skip
from tools.go_tools import HELM

CHART: Final = Path(__file__).resolve().parents[2] / "helm" / "keylane"
VALUE_SETS: Final = sorted((CHART / "ci").glob("*-values.yaml"))
KUBERNETES: Final = "v1.34.0"
"""A Helm that was built from source takes Kubernetes 1.20 for granted."""
RELEASE: Final = "keylane"
NAMESPACE: Final = "prod"
MINIMAL: Final[Mapping[str, Any]] = {"config": {"bootstrap": "kafka:9092"}}

Object = dict[str, Any]


class RenderFailed(Exception):
    """Helm refused the values; the text is Helm's."""


class Renderer:
    """The chart, with Helm at hand."""

    def __init__(self) -> None:
        self._helm = find_or_skip(HELM)

    def template(self, values: Mapping[str, Any] | Path = MINIMAL) -> list[Object]:
        """Return every object. Raises: RenderFailed."""
        file, text = self._values(values)
        out = self._run(
            "template", RELEASE, str(CHART), "--namespace", NAMESPACE,
            "--kube-version", KUBERNETES, "--values", file, stdin=text,
        )  # fmt: skip
        return [found for found in yaml.safe_load_all(out) if found]

    def lint(self, values: Path) -> str:
        """Return Helm's findings about the chart. Raises: RenderFailed."""
        return self._run("lint", "--strict", str(CHART), "--values", str(values))

    def release(self, command: str, kubeconfig: Path, *args: str) -> str:
        """`helm install` or `helm upgrade` at a cluster; its output. Raises: RenderFailed."""
        return self._run(command, RELEASE, str(CHART), "--kubeconfig", str(kubeconfig), *args)

    @staticmethod
    def _values(values: Mapping[str, Any] | Path) -> tuple[str, str]:
        if isinstance(values, Path):
            return str(values), ""
        return "-", yaml.safe_dump(dict(values))

    def _run(self, *args: str, stdin: str = "") -> str:
        done = subprocess.run(
            [str(self._helm), *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise RenderFailed(done.stderr + done.stdout)
        return done.stdout


def find(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind (and name)."""
    found = [
        one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"])
    ]
    assert len(found) == 1, [(one["kind"], one["metadata"]["name"]) for one in objects]
    return found[0]


def node_pod(objects: list[Object]) -> Object:
    """The pod template of the node."""
    spec: Object = find(objects, "StatefulSet")["spec"]["template"]
    return spec


def node_container(objects: list[Object]) -> Object:
    """keylane's container."""
    container: Object = node_pod(objects)["spec"]["containers"][0]
    return container


def configuration(objects: list[Object]) -> str:
    """The text of keylane's configuration file."""
    volumes = {volume["name"]: volume for volume in node_pod(objects)["spec"]["volumes"]}
    held = find(objects, "ConfigMap", volumes["config"]["configMap"]["name"])
    text: str = held["data"]["keylane.yaml"]
    return text


def node_numbers(objects: list[Object]) -> list[int]:
    """Numbers of all nodes that there may be: replicas, or what autoscaling goes up to."""
    spec = find(objects, "StatefulSet")["spec"]
    scalers = [one for one in objects if one["kind"] == "HorizontalPodAutoscaler"]
    count = scalers[0]["spec"]["maxReplicas"] if scalers else spec["replicas"]
    first = spec.get("ordinals", {}).get("start", 0)
    return list(range(first, first + count))
