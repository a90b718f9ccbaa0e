"""keylane/cli/config_command.py: keys with their values and places, here and of a node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keylane.cli.main import main
from keylane.config.node import ProxyConfig
from tests.unit.cli.fake_control import FakeControl


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests leave no variables of keys."""
    for key in ProxyConfig.model_fields:
        monkeypatch.delenv(f"KEYLANE_{key.upper()}", raising=False)


def test_every_key_is_shown_without_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    """What a node needs to start is shown as required, and has no value."""
    assert main(["config", "-o", "json"]) == 0

    keys = {each["key"]: each for each in json.loads(capsys.readouterr().out)["keys"]}
    assert keys.keys() >= ProxyConfig.model_fields.keys()
    bootstrap = keys["bootstrap"]
    assert (bootstrap["value"], bootstrap["is_required"], bootstrap["source"]) == (
        None, True, "default",
    )  # fmt: skip


def test_changed_keys_have_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file, a variable, a flag, and --set; the names of the proposals are beside them."""
    path = tmp_path / "keylane.yaml"
    path.write_text("bootstrap: k:1\nlisten: h:2\n")
    monkeypatch.setenv("KEYLANE_CACHE_BYTES_MAX", "1048576")

    args = ["--config", str(path), "--lanes", "orders=16", "--set", "client_id=x"]
    assert main(["config", "--changed", *args]) == 0

    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows[0] == ["bootstrap", "k:1", "required", str(path), "-"]
    assert {row[0]: row[-2] for row in rows} | {"cache_bytes_max": "-"} == {
        "bootstrap": str(path), "listen": str(path), "client_id": "--set", "lanes": "--lanes",
        "cache_bytes_max": "-",
    }  # fmt: skip
    (cache,) = [row for row in rows if row[0] == "cache_bytes_max"]
    assert cache[1:4] == ["1048576", "209715200", "KEYLANE_CACHE_BYTES_MAX"]
    assert "max.bytes.key.range.cache" in " ".join(cache)


def test_a_wrong_configuration_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as `keylane proxy` gives."""
    assert main(["config", "--set", "lanez=1"]) == 2
    assert capsys.readouterr().err == (
        "keylane config: --set lanez: no such key; did you mean lanes?\n"
    )


def test_a_node_that_runs_is_asked(
    control: FakeControl, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --control; its values are in force, whatever the flags are."""
    key = {
        "key": "memory_max", "value": 5, "default": None, "source": "default", "place": None,
        "adjusted_by": "machine", "aliases": [],
    }  # fmt: skip
    control.answer("GET", "/config", {"keys": [key]})

    assert main(["config", "--control", control.address]) == 0

    assert capsys.readouterr().out.splitlines()[1].split() == [
        "memory_max", "5", "-", "machine", "-",
    ]  # fmt: skip
