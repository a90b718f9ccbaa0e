"""docs/spark.md: its commands are commands, its SQL is the expression that jobs use."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from tests.commands import parse_command

PAGE: Final = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
COMMANDS: Final = [
    line.partition("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("keylane ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_parses(command: str) -> None:
    """Flags and places are those of this version."""
    assert vars(parse_command(shlex.split(command)[1:]))


def test_the_page_shows_commands() -> None:
    """The recipe stands there: profile, plan, proxy."""
    words = [command.split()[1] for command in COMMANDS]

    assert words[:4] == ["spark", "spark", "plan", "proxy"]
