"""Write what the chart repeats: the schema of `config`, and README.md from values.yaml.

`python -m tools.gen_chart` writes both, `--check` compares.
Source: comments in the form of helm-docs (`# --`); JSON Schema draft 7, as Helm reads it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from keylane.config.node import ProxyConfig
from keylane.config.rule_forms import PLAN_SUFFIX
from tools.parts import ROOT

CHART: Final = ROOT / "helm" / "keylane"
PAGE: Final = ROOT / "tools" / "chart_readme.md"
"""README.md around the table of values."""
OWN_KEYS: Final = frozenset(
    {
        "listen", "control", "control_advertise", "advertise", "advertise_port",
        "advertise_port_step", "advertise_pattern", "control_token_file",
        "control_read_token_file", "node_secret_file", "control_certificate", "control_key",
        "control_client_ca", "control_admins", "control_readers", "node", "workers",
        "worker_port_step", "broker_ports_from", "share_port",
    }
)  # fmt: skip
"""Keys that the chart itself sets, from `ports`, `control`, `nodes`, `sni` and `replicas`."""
COMMENT: Final = (
    "Written by tools/gen_chart.py from keylane's own keys, without those that the chart sets: "
    "listen (ports.kafka), control (ports.control), advertise and its like (nodes, sni), tokens "
    "and certificates (control), node (the pod's number), workers (replicas)."
)
BOOTSTRAP_PATTERN: Final = r"^[^,\s]+:[0-9]+(,[^,\s]+:[0-9]+)*$"
DRAIN_TIMEOUT_S_MAX: Final = 3600
"""Kubernetes waits as long; it is a part of `terminationGracePeriodSeconds`."""
PLACE: Final = re.compile(r'^    "config": \{.*?\n(?=    "logLevel": )', re.DOTALL | re.MULTILINE)
SHORT_FORMS: Final = {
    "lanes": ("topic", "lanes"),
    "groups": ("group", "assignor"),
    "share_groups": ("group", "order"),
}
"""Rules that may be a map, as `{orders: 16}`: the key of a rule's name, and of a bare value."""
KINDS: Final = {bool: "bool", int: "int", str: "string", list: "list", dict: "object"}
MARK: Final = re.compile(r"^# -- ?")


class PlaceMissing(Exception):
    """The schema has no `config` before `logLevel`."""


def config_schema() -> dict[str, Any]:
    """Return the schema of the value `config`: every key of keylane but the chart's own."""
    whole = ProxyConfig.model_json_schema()
    properties = {
        key: plain(field, whole["$defs"])
        for key, field in whole["properties"].items()
        if key not in OWN_KEYS
    }
    for key, (name, bare) in SHORT_FORMS.items():
        properties[key] = with_short_form(properties[key], name, bare)
    properties["bootstrap"]["pattern"] = BOOTSTRAP_PATTERN
    properties["drain_timeout_s"]["maximum"] = DRAIN_TIMEOUT_S_MAX
    return {
        "$comment": COMMENT,
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def with_short_form(schema: dict[str, Any], name: str, bare: str) -> dict[str, Any]:
    """Return the schema of a list of rules that may be a map: by `name`, to `bare` or the rest.

    A keyword says nothing of values of another type, so that no `anyOf` is needed.
    """
    rule = schema["items"]
    fields = {key: field for key, field in rule["properties"].items() if key != name}
    kinds = fields[bare]["type"]
    short: dict[str, Any] = {
        "type": [*sorted({*([kinds] if isinstance(kinds, str) else kinds)} - {"null"}), "object"],
        "properties": fields,
        "additionalProperties": False,
    }
    short |= {key: fields[bare][key] for key in ("minimum", "maximum") if key in fields[bare]}
    if "enum" in fields[bare]:
        short["pattern"] = f"^({'|'.join(filter(None, fields[bare]['enum']))})$"
    elif "plan" in fields:
        short["type"].insert(0, "string")
        short["pattern"] = f"{re.escape(PLAN_SUFFIX)}$"
    return schema | {"type": ["array", "object"], "additionalProperties": short}


def plain(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema without references, titles and defaults; "or null" is a second type.

    Helm's message about an `anyOf` names none of its parts.
    """
    if isinstance(schema, list):
        return [plain(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    kept = {key: value for key, value in schema.items() if key not in {"title", "default"}}
    match kept.get("anyOf"):
        case [dict() as other, {"type": "null"}]:
            del kept["anyOf"]
            kept |= plain(other, definitions)
            kept["type"] = [kept["type"], "null"]
            if "enum" in kept:
                kept["enum"] = [*kept["enum"], None]
    if "properties" in kept:
        fields = kept["properties"].items()
        kept["properties"] = {key: plain(field, definitions) for key, field in fields}
        return kept
    return {key: plain(value, definitions) for key, value in kept.items()}


def schema_text(old: str) -> str:
    """Return values.schema.json with `config` as keylane has it. Raises: PlaceMissing."""
    lines = json.dumps({"config": config_schema()}, indent=2, ensure_ascii=False).splitlines()[1:-1]
    part = "\n".join(f"  {line}" for line in lines) + ",\n"
    new, count = PLACE.subn(lambda _: part, old)
    if count != 1:
        raise PlaceMissing("values.schema.json")
    return new


@dataclass(frozen=True, slots=True)
class Row:
    """One value: its path, the type and text of its default, and its description."""

    path: str
    kind: str
    default: str
    text: str


def rows(text: str) -> list[Row]:
    """Return the rows of all values, in their order.

    A map with a description has a row, too; of its values those that have a description.
    """
    document = yaml.compose(text)
    assert isinstance(document, yaml.MappingNode)
    return list(_rows_of(document, "", text.splitlines(), is_below_a_row=False))


def _rows_of(
    node: yaml.MappingNode, prefix: str, lines: list[str], *, is_below_a_row: bool
) -> Iterator[Row]:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        description = _description_above(lines, key.start_mark.line)
        is_map = isinstance(value, yaml.MappingNode) and value.value and not value.flow_style
        if description or not (is_map or is_below_a_row):
            default = yaml.safe_load(yaml.serialize(value))
            yield Row(path, KINDS[type(default)], json.dumps(default), description)
        if is_map:
            is_below = is_below_a_row or bool(description)
            yield from _rows_of(value, f"{path}.", lines, is_below_a_row=is_below)


def _description_above(lines: list[str], line: int) -> str:
    """Return the comment that ends above a line, from its `# --` on; empty if it has none."""
    found: list[str] = []
    for each in map(str.strip, reversed(lines[:line])):
        if not each.startswith("#"):
            return ""
        found.insert(0, MARK.sub("", each) if MARK.match(each) else each.removeprefix("#").strip())
        if MARK.match(each):
            return " ".join(found)
    return ""


def readme_text() -> str:
    """Return README.md of the chart."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    values = rows((CHART / "values.yaml").read_text(encoding="utf-8"))
    table = "\n".join(
        f"| {row.path} | {row.kind} | `{row.default}` | {_cell(row.text)} |" for row in values
    )
    text = PAGE.read_text(encoding="utf-8")
    places = {"version": chart["version"], "appVersion": chart["appVersion"]}
    places |= {"kubeVersion": chart["kubeVersion"].removesuffix("-0"), "home": chart["home"]}
    places |= {"description": chart["description"], "source": chart["sources"][0], "values": table}
    return re.sub(r"@(\w+)@", lambda match: places[match[1]], text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: list[str] | None = None) -> int:
    """Write both files, or with --check compare them: 1 when one is not current."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args(argv).check
    schema = CHART / "values.schema.json"
    texts: dict[Path, str] = {
        schema: schema_text(schema.read_text(encoding="utf-8")),
        CHART / "README.md": readme_text(),
    }
    old = [
        path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in old:
        name = path.relative_to(ROOT)
        print(f"{name} is not current: python -m tools.gen_chart" if is_check else name)
        if not is_check:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if is_check and old else 0


if __name__ == "__main__":
    sys.exit(main())
