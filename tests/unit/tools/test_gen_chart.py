"""What the chart repeats is current: the schema of `config`, and the README."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Final

import jsonschema
import pytest
import yaml

from keylane.config.node import ProxyConfig
from keylane.config.rule_forms import SHORT_FORMS
from keylane.config.sources import load_config
from keylane.errors import ConfigInvalid
from tools import gen_chart

CHART: Final = gen_chart.CHART
FLAVOURED: Final = """
# -- Both of them, in two
# lines.
first: {a: 1}
second:
  # A note, which is no description.
  third: [1]
  # -- Its own.
  fourth: "x"
"""


def test_the_chart_is_up_to_date() -> None:
    """The schema has keylane's keys, and README.md the values."""
    assert gen_chart.main(["--check"]) == 0


def test_every_key_is_the_users_or_the_charts() -> None:
    """No key is in both, none in neither, and a key of the chart is one of keylane."""
    listed = set(gen_chart.config_schema()["properties"])

    assert listed | gen_chart.OWN_KEYS == set(ProxyConfig.model_fields)
    assert not listed & gen_chart.OWN_KEYS


@pytest.mark.parametrize(
    ("config", "is_taken"),
    [
        ({"lanes": [{"topic": "orders", "lanes": 16, "hash": "murmur2"}]}, True),
        ({"lanes": [{"topic": "orders", "plan": None, "lanes": 16}]}, True),
        ({"groups": [{"group": "billing", "assignor": None}]}, True),
        ({"memory_max": None, "cache_bytes_max": 0}, True),
        ({"lanes": {"orders": 16, "audit": "audit.json"}}, True),
        ({"lanes": {"orders": {"lanes": 16, "hash": "murmur2"}}}, True),
        ({"groups": {"billing": "key-range", "audit": {"co_partitioned": True}}}, True),
        ({"share_groups": {"billing": "key"}}, True),
        ({"lanes": {"orders": 0}}, False),
        ({"lanes": {"orders": "many"}}, False),
        ({"lanes": {"orders": {"lane": 16}}}, False),
        ({"groups": {"billing": "sticky"}}, False),
        ({"share_groups": {"billing": 1}}, False),
        ({"lanes": [{"lanes": 16}]}, False),
        ({"groups": [{"group": "billing", "assignor": "sticky"}]}, False),
        ({"cache_bytes_max": -1}, False),
        ({"lanez": []}, False),
    ],
)
def test_the_schema_is_as_strict_as_keylane(
    config: dict[str, object], is_taken: bool, tmp_path: Path
) -> None:
    """What the schema refuses or takes is what keylane refuses or takes in a file."""
    whole = {"bootstrap": "kafka:9092", **config}
    path = tmp_path / "keylane.yaml"
    path.write_text(yaml.safe_dump(whole))

    is_valid = jsonschema.Draft7Validator(gen_chart.config_schema()).is_valid(whole)

    assert is_valid == is_taken
    try:
        load_config(path=path, environment={}, flags={})
    except ConfigInvalid:
        assert not is_taken
    else:
        assert is_taken


def test_short_forms_are_keylanes() -> None:
    """The rules that may be a map, and the keys of their names, are those that keylane takes."""
    assert {key: name for key, (name, _) in gen_chart.SHORT_FORMS.items()} == {
        key: name for key, (name, _) in SHORT_FORMS.items()
    }


def test_only_config_changes_in_the_schema() -> None:
    """The rest of the file, which people write, stays byte by byte."""
    old = (CHART / "values.schema.json").read_text(encoding="utf-8")
    emptied = gen_chart.PLACE.sub('    "config": {},\n', old)

    new = gen_chart.schema_text(emptied)

    assert new == old
    assert json.loads(new)["properties"]["config"]["additionalProperties"] is False
    with pytest.raises(gen_chart.PlaceMissing):
        gen_chart.schema_text("{}")


def test_descriptions_are_those_of_helm_docs() -> None:
    """A `# --` comment of several lines describes the key below it; other comments do not."""
    found = [(row.path, row.kind, row.default, row.text) for row in gen_chart.rows(FLAVOURED)]

    assert found == [
        ("first", "object", '{"a": 1}', "Both of them, in two lines."),
        ("second.third", "list", "[1]", ""),
        ("second.fourth", "string", '"x"', "Its own."),
    ]


def test_the_icon_is_the_file() -> None:
    """Chart.yaml carries icon.svg itself, a drawing without scripts or addresses."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    drawing = (CHART / "icon.svg").read_bytes().strip()

    kind, _, data = chart["icon"].partition(",")

    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data) == drawing
    assert re.findall(rb"https?://[^\"]+", drawing) == [b"http://www.w3.org/2000/svg"]


def test_the_readme_has_every_value() -> None:
    """Each leaf of values.yaml is in the table, or the map that it belongs to."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    text = (CHART / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| ([\w.]+) \|", text, re.MULTILINE))

    def missing(node: object, path: str) -> list[str]:
        if path in listed:
            return []
        if isinstance(node, dict) and node:
            return [each for key, value in node.items() for each in missing(value, f"{path}.{key}")]
        return [path]

    assert [each for key, value in values.items() for each in missing(value, key)] == []


def test_a_stale_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--check names what has to be written, and writes nothing."""
    chart = tmp_path / "helm" / "keylane"
    chart.mkdir(parents=True)
    for name in ("Chart.yaml", "values.yaml", "values.schema.json"):
        (chart / name).write_bytes((CHART / name).read_bytes())
    (chart / "README.md").write_text("old\n")
    monkeypatch.setattr(gen_chart, "CHART", chart)
    monkeypatch.setattr(gen_chart, "ROOT", tmp_path)

    assert gen_chart.main(["--check"]) == 1

    assert "helm/keylane/README.md is not current" in capsys.readouterr().out
    assert (chart / "README.md").read_text() == "old\n"
