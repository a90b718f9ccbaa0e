"""docs/control-api.md: each example does what stands behind it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.reference.control_port import control_port_in_thread

PAGE = Path(__file__).parents[5] / "docs" / "control-api.md"
ADDRESS = "127.0.0.1:19090"


def is_whole(command: str) -> bool:
    """Whether no quote is open at the end of a command."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are of curl")
def test_the_examples_of_the_page() -> None:
    """One after the other, on a fresh cluster: the same answers, but for white space."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    steps = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    assert len(steps) >= 9
    with control_port_in_thread() as port:
        for step in steps:
            lines = step.split("\n")
            size = next(n for n in range(1, len(lines) + 1) if is_whole("\n".join(lines[:n])))
            command = "\n".join(lines[:size])

            done = subprocess.run(
                ["bash", "-c", command.replace(ADDRESS, port.server.address)],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )

            assert done.returncode == 0, f"{command}: {done.stderr}"
            assert done.stdout.split() == "\n".join(lines[size:]).split(), command
