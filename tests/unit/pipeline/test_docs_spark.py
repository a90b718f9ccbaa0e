"""The pages of Spark: their commands are commands, their jars the locked ones."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from keylane.pipeline.needs import CONNECTOR, spark_lock
from tests.commands import parse_command

DOCS: Final = Path(__file__).parents[3] / "docs"
SUBMITTED: Final = "run.py keylane "


def commands_of(page: str) -> list[str]:
    """Whole commands of a page, whether started by themselves or by spark-submit."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = []
    for line in (line.partition("#")[0].strip() for line in lines):
        _, submitted, rest = line.partition(SUBMITTED)
        command = f"keylane {rest}" if submitted else line
        if command.startswith("keylane ") and not command.endswith("..."):
            found.append(command)
    return found


PAGES: Final = ("spark.md", "spark-load.md", "spark-lanes.md", "spark-audit.md")
PAGE: Final = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in PAGES)
CLUSTER_PAGE: Final = (DOCS / "spark-cluster.md").read_text(encoding="utf-8")
COMMANDS: Final = commands_of(PAGE)
CLUSTER_COMMANDS: Final = commands_of(CLUSTER_PAGE)


@pytest.mark.parametrize("command", COMMANDS + CLUSTER_COMMANDS)
def test_every_command_of_the_pages_parses(command: str) -> None:
    """Flags and places are those of this version."""
    assert vars(parse_command(shlex.split(command)[1:]))


def test_both_ways_to_start_are_shown() -> None:
    """By keylane, and by spark-submit."""
    assert [command.split()[2] for command in CLUSTER_COMMANDS] == ["profile", "profile"]
    assert SUBMITTED in CLUSTER_PAGE


def test_the_packages_of_the_page_are_the_locked_ones() -> None:
    """The connector stands there in the version whose jars keylane checks."""
    locked = {jar.coordinates for jar in spark_lock()}

    (named,) = re.findall(rf"spark\.jars\.packages=({re.escape(CONNECTOR)}:\S+)", CLUSTER_PAGE)

    assert named in locked


def test_the_recipe_from_load_to_lanes_is_shown() -> None:
    """Profile, plan, proxy."""
    page = (DOCS / "spark-load.md").read_text(encoding="utf-8")

    assert [command.split()[1] for command in commands_of(page)][:3] == ["spark", "plan", "proxy"]
