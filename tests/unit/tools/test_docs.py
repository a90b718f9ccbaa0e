"""What the pages say of the tree is so: files, functions, tests, links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
ARCHITECTURE: Final = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
GUARANTEES: Final = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
SHOWN_BY: Final = (ROOT / "docs" / "guarantees-tests.md").read_text(encoding="utf-8")
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

NAMED_FILE: Final = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.\w+)`")
FILE_OR_FUNCTION: Final = re.compile(r"`(?:((?:[\w.-]+/)+[\w.-]+\.py)|(\w+)\(\))`")
NAMED_TEST: Final = re.compile(r"\[`(test_\w+)`\]\(\.\./([^)#]+)\)")
LINK: Final = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
DECISION_PARTS: Final = ["## Context", "## Decision", "## Rejected", "## Consequences"]


def functions_of(path: Path) -> set[str]:
    """All functions and methods of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def steps() -> Iterator[str]:
    """The numbered steps of the sections "One ... from entry to exit"."""
    for section in ARCHITECTURE.split("\n## ")[1:]:
        if section.partition("\n")[0].endswith("from entry to exit"):
            yield from (line for line in section.splitlines() if "`" in line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_file_exists(page: Path) -> None:
    """Files in backticks, of the folders that are here, and relative links lead somewhere."""
    text = page.read_text(encoding="utf-8")

    named = [name for name in NAMED_FILE.findall(text) if (ROOT / name.split("/")[0]).is_dir()]
    linked = [link.replace("\\", "") for link in LINK.findall(text) if "://" not in link]

    assert [name for name in named if not (ROOT / name).exists()] == []
    assert [link for link in linked if not (page.parent / link).exists()] == []


def test_every_step_names_functions_of_its_file() -> None:
    """In "from entry to exit" a function stands behind the file that defines it."""
    wrong, count = [], 0

    for step in steps():
        functions: set[str] = set()
        for path, function in FILE_OR_FUNCTION.findall(step):
            if path:
                functions = functions_of(ROOT / path)
            elif function not in functions:
                wrong.append(f"{function} in: {step[:70]}")
            count += 1

    assert wrong == []
    assert count > 60


def test_architecture_is_read_in_one_sitting() -> None:
    """At most 20,000 characters: traps of one file stand in that file."""
    assert len(ARCHITECTURE) <= 20_000


def test_every_guarantee_is_shown_by_tests_that_exist() -> None:
    """Each section of docs/guarantees.md has tests, and each stands in the file that it links."""
    guarantees = [part.partition("\n")[0] for part in GUARANTEES.split("\n### ")[1:]]
    shown = {part.partition("\n")[0]: part for part in SHOWN_BY.split("\n### ")[1:]}

    silent = [title for title, part in shown.items() if not NAMED_TEST.search(part)]
    missing = [
        name
        for name, path in NAMED_TEST.findall(SHOWN_BY)
        if not (ROOT / path).exists() or name not in functions_of(ROOT / path)
    ]

    assert len(guarantees) > 20
    assert list(shown) == guarantees
    assert silent == []
    assert missing == []


def test_decisions_are_numbered_whole_and_linked() -> None:
    """Records 001, 002, ... have the four parts, and their index links each."""
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    records = sorted(folder.glob("0*.md"))

    numbers = [int(path.name[:3]) for path in records]
    texts = [path.read_text(encoding="utf-8") for path in records]
    parts = [re.findall(r"^## \w+", text, re.MULTILINE) for text in texts]

    assert numbers == list(range(1, len(records) + 1))
    assert parts == [DECISION_PARTS] * len(records)
    assert [path.name for path in records if f"]({path.name})" not in index] == []


def test_the_readme_stays_short() -> None:
    """Below 150 lines: what is longer belongs into docs/."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()

    assert len(lines) < 150
