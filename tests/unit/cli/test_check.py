"""keylane/cli/check.py: exit codes, forms, and variables that are no keys."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from keylane.cli.check import misspelt_variables
from keylane.cli.main import main


def test_a_sound_configuration_is_fine_without_brokers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With --offline no broker is asked; exit code 0."""
    args = ["--bootstrap", "k:1", "--lanes", "orders=16", "--set", "listen=127.0.0.1:0"]

    assert main(["check", "--offline", *args]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split(maxsplit=2) == [
        "ok", "configuration", "bootstrap k:1, listen 127.0.0.1:0, lanes orders=16",
    ]  # fmt: skip


def test_a_wrong_configuration_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, the same that `keylane proxy` ends with."""
    assert main(["check", "--bootstrap", "k"]) == 2
    assert capsys.readouterr().err == "keylane check: --bootstrap: 'k' is not host:port\n"


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_what_is_in_the_way_exits_with_1(
    form: str, read: Callable[[str], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead broker and a port in use, each with its remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"

        code = main(["check", "--bootstrap", "127.0.0.1:1", "--listen", listen, "-o", form])

    report = read(capsys.readouterr().out)
    found = {each["subject"]: each for each in report["findings"] if each["status"] == "error"}
    assert (code, report["status"]) == (1, "error")
    assert found["kafka"]["text"].endswith("broker at 127.0.0.1:1: connection refused")
    assert found["port"]["text"] == f"listen {listen}: address already in use"
    assert all(each["remedy"] for each in found.values())


def test_misspelt_variables_are_found() -> None:
    """Those of other things are not: a Service named keylane brings variables of its kind."""
    environment = {
        "KEYLANE_LISTNE": "x", "KEYLANE_LISTEN": "x", "KEYLANE_PORT": "tcp://10.0.0.1:9092",
        "KEYLANE_SERVICE_HOST": "10.0.0.1", "KEYLANE_CONTROL_TOKEN": "x", "KEYLANE_LOG": "x",
        "HOME": "/",
    }  # fmt: skip

    assert list(misspelt_variables(environment)) == [
        "KEYLANE_LISTNE: no such key, it counts for nothing; did you mean KEYLANE_LISTEN?"
    ]
