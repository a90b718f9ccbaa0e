"""The public names of the Python consumer: all there, loaded late, with help that is of use."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

import keylane.client
from keylane.client import errors
from keylane.client.settings import ConsumerOptions, ConsumerSettings
from keylane.client.workers.settings import WorkerOptions, WorkerSettings
from keylane.errors import KeylaneError
from tools.gen_python import KAFKA_NAMES, field_docstrings, kafka_name, python_page

ERRORS: Final = sorted(
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, KeylaneError) and value is not KeylaneError
)
CLASSES: Final = [
    "Consumer", "DeadLetters", "ExactlyOnce", "RebalanceListener", "Records", "Retry",
    "ShareSource", "Workers",
]  # fmt: skip
UNITS: Final = ("_ms", "_s", "_bytes")
COUNTS: Final = {
    "attempts", "concurrency", "jitter", "jitter_start", "max_num_ranges_to_commit",
    "max_poll_records", "max_queued", "multiplier",
}  # fmt: skip
"""Options that are counts, or ratios."""
ASKS: Final = [
    "start", "getmany", "getone", "commit", "committed", "position", "beginning_offsets",
    "end_offsets", "offsets_for_times", "subscribe", "assign", "seek", "pause", "resume",
]  # fmt: skip
"""Calls of a consumer that may fail by what an application gives, or by the cluster."""


def seen_by_type_checkers() -> set[str]:
    """Names that the package imports under TYPE_CHECKING."""
    assert keylane.client.__file__ is not None
    tree = ast.parse(Path(keylane.client.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def members_of(kind: type) -> dict[str, Any]:
    """Public methods and properties of a class."""
    return {name: each for name, each in inspect.getmembers(kind) if not name.startswith("_")}


def test_type_checkers_see_what_is_exported() -> None:
    """`__all__` and the imports under TYPE_CHECKING name the same things."""
    assert set(keylane.client.__all__) == seen_by_type_checkers()
    assert set(keylane.client.__all__) <= set(dir(keylane.client))


def test_every_error_is_exported() -> None:
    """An application catches each error by a name of the package."""
    assert [
        name for name in ERRORS if getattr(keylane.client, name) is not vars(errors)[name]
    ] == []


@pytest.mark.parametrize("name", keylane.client.__all__)
def test_a_public_name_explains_itself(name: str) -> None:
    """The name is there, and has a docstring that its own source wrote."""
    found = getattr(keylane.client, name)

    assert found.__name__ == name
    assert found.__doc__ and not found.__doc__.startswith(f"{name}(")


def test_an_unknown_name_is_no_attribute() -> None:
    """A misspelt name is an AttributeError that shows it."""
    with pytest.raises(AttributeError, match="Wrokers"):
        _ = keylane.client.Wrokers  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_member_has_a_docstring(name: str) -> None:
    """Methods and properties of the classes that applications use."""
    members = members_of(getattr(keylane.client, name))

    silent = [
        each
        for each, value in members.items()
        if (callable(value) or isinstance(value, property)) and not inspect.getdoc(value)
    ]

    assert members and silent == []


@pytest.mark.parametrize("name", ASKS)
def test_calls_that_may_fail_name_their_errors(name: str) -> None:
    """The docstring has `Raises:`, and each error that it names is exported."""
    text = inspect.getdoc(getattr(keylane.client.Consumer, name)) or ""

    assert "Raises:" in text


@pytest.mark.parametrize("kind", [ConsumerSettings, WorkerSettings, keylane.client.Retry])
def test_options_have_units_and_meanings(kind: Any) -> None:
    """Numbers end with their unit unless they count; each option says what it is."""
    meanings = field_docstrings(kind)
    fields = [field for field in dataclasses.fields(kind) if not field.name.startswith("_")]

    numbers = [
        field.name
        for field in fields
        if str(field.type).partition(" ")[0] in {"int", "float"} and field.name not in COUNTS
    ]

    assert [name for name in numbers if not name.endswith(UNITS)] == []
    assert [field.name for field in fields if field.name not in meanings] == []


@pytest.mark.parametrize(
    ("options", "kind"), [(ConsumerOptions, ConsumerSettings), (WorkerOptions, WorkerSettings)]
)
def test_keyword_arguments_are_the_fields(options: Any, kind: Any) -> None:
    """A type checker sees the arguments that there are, in the order of the fields."""
    assert list(options.__annotations__) == [field.name for field in dataclasses.fields(kind)]


def test_an_import_loads_no_consumer() -> None:
    """`import keylane.client` is for free: what a name needs is loaded with its first use."""
    code = (
        "import sys, keylane.client\n"
        "late = {'aiokafka', 'kio', 'numba', 'keylane.client.consumer', 'keylane.client.workers'}\n"
        "print(*sorted(late & set(sys.modules)))\n"
        "keylane.client.Consumer, keylane.client.TopicPartition\n"
        "print(*sorted(late & set(sys.modules)))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["", "keylane.client.consumer"]


def test_help_begins_with_an_overview() -> None:
    """`help(keylane.client)` names each entry, and shows its own names, not those of imports."""
    text = pydoc.plain(pydoc.render_doc(keylane.client))
    overview = text.partition("PACKAGE CONTENTS")[0]

    assert [name for name in ("Consumer", *CLASSES) if name not in overview] == []
    assert "importlib" not in text.partition("CLASSES")[2]


def test_the_page_shows_every_program_and_every_error() -> None:
    """docs/python.md includes each program of its folder, and has each error's cause and cure."""
    docs = Path(__file__).parents[3] / "docs"
    page = (docs / "python.md").read_text(encoding="utf-8")
    programs = docs / "examples" / "python"
    troubles = page.partition("## What does this error mean?")[2].partition("\n## ")[0]

    named = {
        name for name in keylane.client.__all__
        if inspect.isclass(found := getattr(keylane.client, name))
        and issubclass(found, KeylaneError) and found is not KeylaneError
    }  # fmt: skip

    assert [path.name for path in programs.glob("*.py") if path.read_text() not in page] == []
    assert [name for name in sorted(named) if f"`{name}`" not in troubles] == []
    assert python_page(page, programs) == page


def test_kafkas_names_are_options() -> None:
    """Each name that is not the same with dots belongs to an option that there is."""
    options = {field.name for field in dataclasses.fields(ConsumerSettings)}

    assert set(KAFKA_NAMES) <= options
    assert kafka_name("max_poll_interval_ms") == "`max.poll.interval.ms`"
