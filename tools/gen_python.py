"""Write the generated parts of docs/python.md: programs, options, metrics of the workers.

A part stands between the lines `<!-- begin: NAME -->` and `<!-- end: NAME -->` of the page.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final

from keylane.client.settings import ConsumerSettings
from keylane.client.workers.metrics import WorkersCollector
from keylane.client.workers.retry import NO_RETRY, Retry
from keylane.client.workers.settings import WorkerSettings
from keylane.client.workers.tallies import Tallies
from keylane.client.workers.view import WorkersView

PART: Final = re.compile(r"(<!-- begin: ([\w. ]+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)
NO_NAME: Final = "none"
KAFKA_NAMES: Final[Mapping[str, str]] = {
    "allow_individual_commit": NO_NAME,
    "max_buffered_bytes": NO_NAME,
    "max_num_ranges_to_commit": NO_NAME,
    "revoke_completion": NO_NAME,
    "sasl_kerberos_domain_name": NO_NAME,
    "sasl_oauth_token_provider": "`sasl.login.callback.handler.class`",
    "sasl_plain_password": "`sasl.jaas.config`",
    "sasl_plain_username": "`sasl.jaas.config`",
    "ssl_context": "`ssl.*`",
}
"""Names in Kafka's configuration, where they are not the same words with dots."""


def python_page(page: str, programs: Path) -> str:
    """Return the page with its parts as the code has them. Raises: KeyError, an unknown part."""
    parts: dict[str, Callable[[], str]] = {
        "options of a consumer": consumer_options,
        "options of workers": worker_options,
    }
    for program in programs.glob("*.py"):
        parts[program.name] = lambda path=program: _program(path)  # type: ignore[misc]

    def fill(found: re.Match[str]) -> str:
        return f"{found[1]}{parts[found[2]]()}{found[3]}"

    return PART.sub(fill, page)


def consumer_options() -> str:
    """The table of a consumer's options."""
    rows = [
        f"| `{name}` | {default} | {kafka_name(name)} | {meaning} |"
        for name, default, meaning in options_of(ConsumerSettings)
    ]
    head = "| option | default | in Kafka's configuration | meaning |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def worker_options() -> str:
    """The table of the options of `Workers`, and that of a `Retry`."""
    tables = []
    for title, kind in (("option of `Workers`", WorkerSettings), ("field of `Retry`", Retry)):
        rows = [
            f"| `{name}` | {default} | {meaning} |" for name, default, meaning in options_of(kind)
        ]
        tables.append(f"| {title} | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(tables)


def kafka_name(option: str) -> str:
    """Return what Kafka calls an option."""
    return KAFKA_NAMES.get(option, f"`{option.replace('_', '.')}`")


def options_of(kind: Any) -> Iterator[tuple[str, str, str]]:
    """Yield name, default and meaning of each field of a dataclass."""
    meanings = field_docstrings(kind)
    for field in fields(kind):
        if not field.name.startswith("_"):
            yield field.name, _default(field.default), meanings[field.name]


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the strings that stand behind the fields of a class, by field, on one line."""
    module = importlib.import_module(kind.__module__)
    assert module.__file__ is not None, "it has a source"
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    (body,) = (
        node.body
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    found = {}
    for field, text in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _default(value: Any) -> str:
    """A default as Python has it."""
    if value is MISSING:
        return "required"
    if value == NO_RETRY:
        return "`Retry(attempts=1)`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20:
        return f"`{value >> 20} << 20`"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"`{value:_}`"
    return f"`{value}`"


def _program(path: Path) -> str:
    return f"```python\n{path.read_text(encoding='utf-8')}```\n"


def workers_metrics() -> Iterator[tuple[str, str, str]]:
    """Yield name with labels, kind and meaning of each metric of the workers."""
    view = WorkersView(0, 0, 0, 0, 0, 0, lag=0.0)
    for family in WorkersCollector("name", Tallies(), lambda: view).collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        yield f"{name}{{workers}}", family.type, family.documentation
