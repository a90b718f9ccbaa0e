"""Sources of a configuration: each wrong value is one line with its place, its key and the cure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keylane.config.node import GroupRule, LaneRule, ProxyConfig
from keylane.config.share_rules import ShareRule
from keylane.config.sources import load_config
from keylane.errors import ConfigInvalid

FILE = "keylane.yaml"
HEAD = "bootstrap: k:1\n"


def load(text: str | None, folder: Path, *, environment: Any = None, **flags: Any) -> ProxyConfig:
    """Load a file of this text, with an environment and flags."""
    path = None
    if text is not None:
        path = folder / FILE
        path.write_text(text)
    return load_config(path=path, environment=environment or {}, flags=flags).config


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{HEAD}lanez: []\n", ":2: lanez: no such key; did you mean lanes?"),
        (f"{HEAD}zzz: 1\n", ":2: zzz: no such key; `keylane config` lists all keys"),
        (
            f"{HEAD}lanes:\n  - topic: o\n    lanes: many\n",
            ":4: lanes.0.lanes: 'many' is no whole number",
        ),
        (f"{HEAD}lanes:\n  a: 4\n  o: many\n", ":4: lanes.1.lanes: 'many' is no whole number"),
        (
            f"{HEAD}lanes:\n  o: {{lanes: 4, hashes: x}}\n",
            ":3: lanes.0.hashes: no such key; did you mean hash?",
        ),
        (f"{HEAD}lanes:\n  - {{lanes: 4}}\n", ":3: lanes.0: topic is missing, as in {orders: 16}"),
        (f"{HEAD}lanes: 5\n", ":2: lanes: expected a list, such as {orders: 16}, or ["),
        (f"{HEAD}lanes: [5]\n", ":2: lanes.0: expected a rule, such as {orders: 16}, or ["),
        (f"{HEAD}lanes: {{topic: o, lanes: 4}}\n", ":2: lanes: expected a list, such as"),
        (f"{HEAD}groups:\n  b: best\n", ":3: groups.0.assignor: 'best' is not 'client' or 'key"),
        (f"{HEAD}node: 5000\n", ":2: node: 5000 is out of bounds, must be 999 or less"),
        (f"{HEAD}idle_timeout_s: 0\n", ":2: idle_timeout_s: 0 is out of bounds, must be above 0"),
        (f"{HEAD}share_port: maybe\n", ":2: share_port: 'maybe' is neither true nor false"),
        (f"{HEAD}advertise: [a]\n", ":2: advertise: ['a'] is no text"),
        (f"{HEAD}idle_timeout_s: x\n", ":2: idle_timeout_s: 'x' is no number"),
        (f"{HEAD}advertise_port_step: 5\n", ":2: advertise_port_step: needs advertise_port"),
        (f"{HEAD}lanes: [a: 4\nnode: 5", ":3:5: not valid YAML: expected ',' or ']'"),
        ("\x00", ": not valid YAML: a character that it does not allow, at 0"),
        ("- a\n", ": expected a mapping of keys to values"),
        ("listen: 2026-13-40\n", ": not valid YAML: month must be in 1..12"),
        ("bootstrap: k\n", ":1: bootstrap: 'k' is not host:port"),
        (f"{HEAD}max.individual.commits: no\n", ":2: individual_commits_max: "),
    ],
)
def test_a_wrong_file_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    """It begins with file and line, names the key, and names the file once."""
    with pytest.raises(ConfigInvalid) as refused:
        load(text, tmp_path)

    shown = str(refused.value)
    assert shown.startswith(f"{tmp_path / FILE}{line}"), shown
    assert shown.count(FILE) == 1
    assert "\n" not in shown


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    """None, a folder, and one that is no text."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path, reason in (
        (tmp_path / "none", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "binary", "not a text in UTF-8"),
    ):
        with pytest.raises(ConfigInvalid) as refused:
            load_config(path=path, environment={}, flags={})
        assert str(refused.value) == f"{path}: {reason}"


@pytest.mark.parametrize(
    ("environment", "flags", "line"),
    [
        ({}, {}, "bootstrap is missing: give --bootstrap, the variable KEYLANE_BOOTSTRAP, or "),
        ({"KEYLANE_NODE": "x"}, {}, "KEYLANE_NODE: node: 'x' is no whole number"),
        ({"KEYLANE_LANES": "[{"}, {}, "KEYLANE_LANES:1:3: not valid YAML: "),
        ({}, {"bootstrap": "k"}, "--bootstrap: 'k' is not host:port"),
        ({}, {"lanes": [{"topic": "o", "lanes": 0}]}, "--lanes: lanes.0.lanes: 0 is out of bounds"),
        ({}, {"nonsense": "1"}, "--set nonsense: no such key; `keylane config` lists all keys"),
    ],
)
def test_a_variable_or_a_flag_is_named(
    environment: dict[str, str], flags: dict[str, Any], line: str, tmp_path: Path
) -> None:
    """As the place of what was wrong."""
    places = {"nonsense": "--set"}
    with pytest.raises(ConfigInvalid) as refused:
        load_config(path=None, environment=environment, flags=flags, places=places)

    assert str(refused.value).startswith(line) or f"; {line}" in str(refused.value)


@pytest.mark.parametrize("source", ["file", "variable", "flag"])
def test_rules_have_a_short_form(source: str, tmp_path: Path) -> None:
    """`{orders: 16}` is what everyone tries first, in a file, a variable and with --set."""
    lanes = "{orders: 16, audit: audit.json, shop: {lanes: 2, hash: murmur2}}"
    text = HEAD
    environment: dict[str, str] = {}
    flags: dict[str, str] = {}
    if source == "file":
        text += f"lanes: {lanes}\ngroups: {{b: client}}\nshare_groups: {{s: key}}\n"
    else:
        given = environment if source == "variable" else flags
        for key, value in (
            ("lanes", lanes),
            ("groups", "{b: client}"),
            ("share_groups", "{s: key}"),
        ):
            given[f"KEYLANE_{key.upper()}" if source == "variable" else key] = value

    config = load(text, tmp_path, environment=environment, **flags)

    assert config.lanes == (
        LaneRule(topic="orders", lanes=16),
        LaneRule(topic="audit", plan="audit.json"),
        LaneRule(topic="shop", lanes=2, hash="murmur2"),
    )
    assert config.groups == (GroupRule(group="b", assignor="client"),)
    assert config.share_groups == (ShareRule(group="s"),)


def test_needed_values_stand_in() -> None:
    """Where a key is set nowhere; they have no origin."""
    loaded = load_config(path=None, environment={}, flags={}, needed={"bootstrap": "k:1"})

    assert loaded.config.bootstrap == "k:1"
    assert loaded.origin_of("bootstrap").source == "default"
