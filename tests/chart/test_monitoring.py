"""Dashboard and alert rules: expressions parse, metrics exist, each alert has its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector

from keylane.proxy.runtime.stats import COUNTER, HISTOGRAM
from tools.gen_docs import samples_of_all
from tools.release import read_urls

from .rendering import CHART, MINIMAL, Renderer, find

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = yaml.safe_load((CHART / "rules" / "keylane.yaml").read_text(encoding="utf-8"))
DASHBOARD: Final = json.loads((CHART / "dashboards" / "keylane.json").read_text(encoding="utf-8"))
OPERATIONS: Final = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
OPERATIONS_URL: Final = f"{read_urls()['Homepage']}/operations.html"
"""Of docs/operations.md on the project's site."""
VARIABLES: Final = {"$__rate_interval": "5m", "$job": ".*", "$instance": ".*"}
OF_THE_TARGET: Final = {"job", "instance", "namespace"}
"""Labels that Prometheus adds to each sample; its operator the last one."""
RATES: Final = ("rate", "increase", "irate")


def kinds() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of every series name that a node has, and of `up`."""
    found: dict[str, tuple[str, set[str]]] = {"up": ("gauge", set())}
    for sample in samples_of_all():
        labels = {key for key, _ in sample.labels}
        if sample.kind != HISTOGRAM:
            found[sample.name] = (sample.kind, labels)
            continue
        found[f"{sample.name}_bucket"] = (COUNTER, labels | {"le"})
        found[f"{sample.name}_sum"] = found[f"{sample.name}_count"] = (COUNTER, labels)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    for family in registry.collect():
        for one in family.samples:
            found[one.name] = (family.type, set(one.labels))
    return found


KINDS: Final = kinds()


def alerts() -> list[dict[str, Any]]:
    """Return every alert rule."""
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def targets() -> Iterator[tuple[str, str]]:
    """Expression and legend of every query of the dashboard, variables replaced."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield expression, target["legendFormat"]


EXPRESSIONS: Final = [rule["expr"] for rule in alerts()] + [expr for expr, _ in targets()]


def walk(node: Any, under: str = "") -> Iterator[tuple[Any, str]]:
    """Every selector below a node of promql-parser, and the function that it is argument of."""
    match node:
        case promql_parser.VectorSelector():
            yield node, under
        case promql_parser.MatrixSelector():
            yield node.vector_selector, under
        case promql_parser.Call():
            for argument in node.args:
                yield from walk(argument, node.func.name)
        case promql_parser.BinaryExpr():
            yield from walk(node.lhs, under)
            yield from walk(node.rhs, under)
        case promql_parser.NumberLiteral():
            return
        case _:
            yield from walk(node.expr, under)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_exists(expression: str) -> None:
    """Names and labels are those of a node; counters are read as rates, gauges are not."""
    selectors = list(walk(promql_parser.parse(expression)))

    assert selectors
    for selector, under in selectors:
        assert selector.name in KINDS, selector.name
        kind, labels = KINDS[selector.name]
        used = {matcher.name for matcher in selector.matchers.matchers}
        assert used <= labels | OF_THE_TARGET, selector.name
        assert (kind == COUNTER) == (under in RATES), f"{selector.name}, a {kind}, under {under}"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_labels_that_are_grouped_by_exist(expression: str) -> None:
    """`by (...)` names labels of the metrics inside."""
    names = {selector.name for selector, _ in walk(promql_parser.parse(expression))}
    labels = set().union(*(KINDS[name][1] for name in names)) | OF_THE_TARGET

    grouped = {
        label.strip()
        for found in re.findall(r"\bby\s*\(([^)]*)\)", expression)
        for label in found.split(",")
    }

    assert grouped <= labels


def test_texts_name_labels_that_are_there() -> None:
    """`{{...}}` of legends, and `$labels` of annotations, are labels of what was asked."""
    wrong = []
    for expression, legend in targets():
        names = {selector.name for selector, _ in walk(promql_parser.parse(expression))}
        labels = set().union(*(KINDS[name][1] for name in names)) | OF_THE_TARGET
        wrong += [name for name in re.findall(r"{{(\w+)}}", legend) if name not in labels]
    for rule in alerts():
        names = {selector.name for selector, _ in walk(promql_parser.parse(rule["expr"]))}
        labels = set().union(*(KINDS[name][1] for name in names)) | OF_THE_TARGET
        used = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
        wrong += [f"{rule['alert']}: {name}" for name in used if name not in labels]

    assert wrong == []


def test_every_alert_has_its_paragraph() -> None:
    """The runbook link of each alert leads to its heading; no heading is left without alert."""
    reported = re.findall(r"^### (Keylane\w+)$", OPERATIONS, re.MULTILINE)

    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    assert sorted(reported) == sorted(names)
    for rule in alerts():
        link = rule["annotations"]["runbook_url"]
        assert link == f"{OPERATIONS_URL}#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_every_alert_says_what_to_do_first() -> None:
    """A description is two sentences at least, ends as one, and names a first step."""
    texts = {rule["alert"]: rule["annotations"]["description"] for rule in alerts()}

    for name, text in texts.items():
        assert len(re.findall(r"[.:] [A-Z`]|\.$", text)) >= 2, name
        assert text.endswith("."), name
        assert re.search(
            r"\b(first|Look|Restart|Run|Find|Read|Check|report|Raise|log names)\b", text
        ), name
    assert len(set(texts.values())) == len(texts)


def test_every_metric_of_the_page_is_watched() -> None:
    """Each metric is in the dashboard or an alert, except those that only describe others."""
    used = {
        selector.name
        for expression in EXPRESSIONS
        for selector, _ in walk(promql_parser.parse(expression))
    }
    known = {sample.name for sample in samples_of_all()}

    unused = {name for name in known if not any(one.startswith(name) for one in used)}

    assert unused <= {
        "keylane_sessions_opened_total",
        "keylane_group_series_left_out",
        "keylane_share_series_left_out",
        "keylane_offsets_unstable_waits_total",
    }


def test_panels_lie_side_by_side() -> None:
    """Panels have different ids, stay within 24 columns and do not overlap."""
    places: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]

    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not places & cells, panel["title"]
        places |= cells


def test_variables_are_defined() -> None:
    """Every `$name` of a query is a variable of the dashboard, or Grafana's own."""
    defined = {f"${entry['name']}" for entry in DASHBOARD["templating"]["list"]}

    used = set(re.findall(r"\$\w+", json.dumps(DASHBOARD["panels"])))

    assert used <= defined | {"$__rate_interval"}


@pytest.mark.timeout(1000)
def test_the_chart_carries_both(chart: Renderer) -> None:
    """PrometheusRule and ConfigMap hold the files, runbook links lead where values say."""
    objects = chart.template(
        {
            **MINIMAL,
            "prometheusRule": {"enabled": True, "runbookBase": "https://wiki/ops"},
            "dashboard": {"enabled": True},
        }
    )

    rules = find(objects, "PrometheusRule")["spec"]
    carried = json.loads(find(objects, "ConfigMap", "keylane-dashboard")["data"]["keylane.json"])
    expected = json.loads(json.dumps(RULES).replace(OPERATIONS_URL, "https://wiki/ops"))
    assert rules == expected
    assert carried == DASHBOARD
