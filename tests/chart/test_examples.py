"""examples/: consumers scale by series that keylane has, in objects that fit their schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import promql_parser
import yaml

from .rendering import CHART
from .test_monitoring import KINDS, OF_THE_TARGET, walk

EXAMPLES: Final = CHART / "examples"
KEDA: Final = json.loads(
    (Path(__file__).parent / "schemas" / "keda.json").read_text(encoding="utf-8")
)


def example(name: str) -> Any:
    """The one document of an example."""
    return yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))


SCALED: Final = example("keda-scaledobject")
SCALER: Final = example("hpa-prometheus-adapter")
(RULE,) = example("prometheus-adapter-values")["rules"]["external"]


def selectors(query: str) -> list[Any]:
    """The selectors of a query, all of gauges that a node has, with their labels."""
    found = [selector for selector, _ in walk(promql_parser.parse(query))]
    for selector in found:
        kind, labels = KINDS[selector.name]
        assert kind == "gauge"
        assert {one.name for one in selector.matchers.matchers} <= labels | OF_THE_TARGET
    return found


def test_the_scaled_object_fits_its_schema() -> None:
    """KEDA knows each field, and each setting of its Prometheus trigger."""
    jsonschema.validate(SCALED, KEDA)  # raises at a field that does not fit


def test_the_scaled_object_asks_for_a_lag_of_keylane() -> None:
    """The query names a gauge of the node, and answers 0 where the group has no series."""
    (trigger,) = SCALED["spec"]["triggers"]
    query = trigger["metadata"]["query"]

    lag, _, otherwise = query.partition(" or ")

    assert otherwise == "vector(0)"
    assert [selector.name for selector in selectors(lag)] == ["keylane_group_stable_lag"]
    promql_parser.parse(query)


def test_the_scaler_fits_its_schema() -> None:
    """Kubernetes knows each field of the HorizontalPodAutoscaler."""
    for version in ("1.28", "1.34"):
        kubernetes_validate.validate(SCALER, version, strict=True)  # raises, too


def test_the_adapter_makes_the_metric_of_the_scaler() -> None:
    """The rule has the name that the scaler asks for, and its query answers with its labels."""
    (metric,) = SCALER["spec"]["metrics"]
    asked = metric["external"]["metric"]
    labels = asked["selector"]["matchLabels"]
    (source,) = selectors(RULE["seriesQuery"])
    places = {
        "Series": source.name,
        "LabelMatchers": ",".join(f'{key}="{value}"' for key, value in labels.items()),
        "GroupBy": "group",
    }

    query = re.sub(r"<<\.(\w+)>>", lambda place: places[place[1]], RULE["metricsQuery"])

    assert asked["name"] == RULE["name"]["as"]
    (selector,) = selectors(query)
    assert {one.name for one in selector.matchers.matchers} == labels.keys() | {"job"}
    assert labels.keys() <= KINDS[source.name][1]


def test_both_scale_alike() -> None:
    """Bounds, target and speed are the same whichever of the two is used."""
    spec, (trigger,) = SCALED["spec"], SCALED["spec"]["triggers"]
    (metric,) = SCALER["spec"]["metrics"]

    assert SCALER["spec"]["minReplicas"] == spec["minReplicaCount"]
    assert SCALER["spec"]["maxReplicas"] == spec["maxReplicaCount"]
    assert metric["external"]["target"]["averageValue"] == trigger["metadata"]["threshold"]
    assert (
        SCALER["spec"]["behavior"] == spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    )
