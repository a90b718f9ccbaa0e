"""The OpenAPI document and the port itself say the same, whatever is sent (schemathesis)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reference.control_port import TOPICS, control_port_in_thread

CONFIG = """
# In the place of 10 s: a machine may stand still for as long.
request-timeout = 60

[checks.positive_data_acceptance]
# A body may fit the schema and still name a topic that is not there (422), keys that somebody else
# has (409), or no version (428) or an old one (412).
expected-statuses = ["2xx", 404, 409, 412, 422, 428]
"""
EXAMPLES = 12


@pytest.mark.timeout(600)
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """Hundreds of requests, good and bad: each answer is of a kind that the document has."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    with control_port_in_thread(accept_range_fetch=tuple(TOPICS)) as port:
        port.health.serves()
        command = [sys.executable, "-c", "from schemathesis.cli import schemathesis as s; s()"]
        command += ["--config-file", str(config), "run", f"{port.url}/openapi.json"]
        command += ["--seed", "1", "--max-examples", str(EXAMPLES), "--no-color"]

        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=590
        )

    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    # All but the document itself, which it has read already.
    assert f"Tested: {len(port.server.operations) - 1}" in done.stdout, done.stdout[-2000:]
    found = re.search(r"(\d+) generated, \1 passed", done.stdout)
    assert found is not None and int(found[1]) > 200, done.stdout[-2000:]
    assert port.assignments.table.version > 0 and port.switches.current.version > 0
