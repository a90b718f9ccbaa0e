"""Check the house style, beyond ruff and mypy, over every file of the project."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

COLUMNS_MAX: Final = 100
FUNCTION_LINES_MAX: Final = 60
MODULE_LINES_MAX: Final = 500
PARAMETERS_MAX: Final = 7
"""`self` is not counted."""
KERNELS: Final = "keylane/kernel/"
"""Kernels take each array by itself: numba pays for a tuple of them."""

PRODUCT: Final = ("keylane", "proxy", "cache", "assignor", "pipeline")
"""Top-level folders that are installed; all but the first by way of a link in the first."""
ENTRY_POINTS: Final = frozenset({"keylane", "keylane.__main__"})
"""Modules that nothing has to import; so are those with a `__name__ == "__main__"` part."""
_ASYNCIO: Final = "a callback of asyncio"
_SPARK: Final = "Spark calls it"
_KAFKA: Final = "a rebalance listener of a stock client"
_LIBRARY: Final = "the library's own method calls it"
_CONSUMER: Final = "of the Python consumer, for the programs that use it"
_EMBEDDED: Final = "of an embedded Kafka, for the programs that start one"
CALLED_ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "connection_made", "connection_lost", "data_received", "eof_received", "get_buffer",
            "buffer_updated", "pause_writing", "resume_writing",
        ),
        _ASYNCIO,
    ),
    **dict.fromkeys(
        (
            "onQueryStarted", "onQueryProgress", "onQueryIdle", "onQueryTerminated",
            "streamReader", "initialOffset", "getDefaultReadLimit", "latestOffset",
            "reportLatestOffset", "prepareForTriggerAvailableNow",
        ),
        _SPARK,
    ),
    **dict.fromkeys(
        ("on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost"), _KAFKA
    ),
    **dict.fromkeys(
        (
            "convert", "do_handshake", "emit", "handle_error", "redirect_request", "wrap_bio",
        ),
        _LIBRARY,
    ),
    "uncommitted_ranges": "the reader's side of a commit, for tests of the worked examples",
    **dict.fromkeys(("await_end", "bootstrap_of"), _EMBEDDED),
    **dict.fromkeys(
        (
            "seek_to_end", "paused", "delay_revoke", "to_be_revoked_ranges",
            "lost_ranges", "delay_revoke_ranges",
            "on_partitions_with_ranges_assigned", "on_partitions_with_ranges_revoked",
            "on_partitions_with_ranges_lost",
        ),
        _CONSUMER,
    ),
    **dict.fromkeys(("on_assigned", "on_revoke_requested"), "through a protocol of the group's"),
    **dict.fromkeys(("build_request_header", "_metadata_update", "authenticator_oauth"), _LIBRARY),
}  # fmt: skip
"""Names that the product defines and never uses, each with the reason why it stays."""
TEXT_SUFFIXES: Final = frozenset(
    {
        "",
        ".cfg",
        ".css",
        ".html",
        ".js",
        ".json",
        ".md",
        ".py",
        ".sh",
        ".toml",
        ".tpl",
        ".txt",
        ".yaml",
        ".yml",
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of the house style."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class Ban:
    """A pattern that no line may hold, with what to write in its place."""

    pattern: re.Pattern[str]
    instead: str
    folders: tuple[str, ...] = ()
    """Folders in which it holds; empty: everywhere."""
    except_in: tuple[str, ...] = ()

    def covers(self, path: str) -> bool:
        """Return whether the ban holds in `path`."""
        inside = not self.folders or _top(path) in self.folders
        return inside and path not in self.except_in


def _top(path: str) -> str:
    return path.partition("/")[0]


BANS: tuple[Ban, ...] = (
    Ban(
        re.compile(r"\.(create_task|ensure_future)\("),
        "keylane.tasks.spawn, which keeps a reference and logs a failure",
        folders=PRODUCT,
        except_in=("keylane/tasks.py",),
    ),
    Ban(re.compile(r"\btime\.time\("), "a `now_s` parameter", folders=PRODUCT),
    Ban(re.compile(r"\btime\.sleep\("), "an event, or a wait with a time-out", folders=PRODUCT),
    Ban(re.compile(r"\bget_event_loop\("), "asyncio.get_running_loop", folders=PRODUCT),
    Ban(re.compile(r"^\s*except\s*:"), "`except Exception` at the widest, in a shell"),
    Ban(re.compile(r"^\s*from \.\."), "an absolute import"),
    Ban(re.compile(r"\b(TODO|FIXME|XXX)\b(?! \(#\d+\))"), "`TODO (#issue): ...`, or do it now"),
    Ban(re.compile(r"^\s*#\s*[=*~#]{5,}"), "no banner: a module is short, or should be split"),
    Ban(re.compile(r"(?<![\w.])/(root|work|home/\w+|Users/\w+)/"), "a path of the reader's own"),
)
ENGLISH: Final = (
    (r"tell|tells|telling|told|untold", "log, publish, report, answer or notify"),
    (r"hear|hears|heard|hearers?", "receive or notify"),
    (r"who|whom|whoever", "a noun: the client, the member, the caller"),
    (r"nobody", "no client, no member, no node"),
    (r"so long", "until, or for how long"),
    (r"as of", "from, or since"),
    (r"of its own", "its own, or a separate one"),
    (r"for ever", "without end"),
)
"""Words that make a reader look twice, and what to write in their place."""
SOURCES: Final = (
    r"DESIGN|REQUIREMENTS|STYLE|SPARK section|S00\d-\d+|[GKC]-\d\d|D-[A-Z]{3,}[-\d]*"
    r"|the seed document"
)
"""Documents that no reader of the project can open."""
BANS += (
    *(
        Ban(re.compile(rf"(?i)(?<![a-z])(?:{words})(?![a-z])"), instead, except_in=("LICENSE",))
        for words, instead in ENGLISH
    ),
    Ban(
        re.compile(rf"(?<![\w-])(?:{SOURCES})(?![\w-])"),
        "a KIP, the protocol guide, a paper, or docs/decisions/NNN",
    ),
    Ban(re.compile(r'^(?:""")?(?:Next|Pure|Shell): '), "nothing: imports and contracts say it"),
    Ban(
        re.compile(r'^\s*"""(?:What|Whether|How|Where|Which|When|Why)\b'),
        "a verb (`Return ...`) or a noun phrase",
        folders=PRODUCT,
    ),
)
SELF: Final = ("tools/tidy.py", "tests/unit/tools/test_tidy.py")
"""These spell out what they ban."""


def find_in_text(path: str, text: str) -> Iterator[Finding]:
    """Breaches that a line shows: columns, banned words; and a module that is too long."""
    lines = text.splitlines()
    bans = [ban for ban in BANS if path not in SELF and ban.covers(path)]
    for number, line in enumerate(lines, start=1):
        if path.endswith(".py") and len(line) > COLUMNS_MAX:
            yield Finding(path, number, "columns", f"{len(line)}, at most {COLUMNS_MAX}")
        for ban in bans:
            match = ban.pattern.search(line)
            if match:
                yield Finding(path, number, "ban", f"{match[0].strip()!r}: use {ban.instead}")
    if path.endswith(".py") and len(lines) > MODULE_LINES_MAX:
        yield Finding(path, 1, "module", f"{len(lines)} lines, at most {MODULE_LINES_MAX}")


def find_in_module(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Breaches that the syntax tree shows: long functions, names, docstrings."""
    yield from _find_module_docstring(path, tree)
    in_tests = path.startswith("tests/")
    for node in ast.walk(tree):
        for name in _names_of(node):
            if not name.isascii():
                yield Finding(path, getattr(node, "lineno", 1), "ascii", f"name {name!r}")
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        size = (node.end_lineno or node.lineno) - node.lineno + 1
        if size > FUNCTION_LINES_MAX:
            text = f"{node.name}: {size} lines, at most {FUNCTION_LINES_MAX}"
            yield Finding(path, node.lineno, "function", text)
        if in_tests and node.name.startswith("test_") and not ast.get_docstring(node):
            text = f"{node.name}: say in one sentence what holds"
            yield Finding(path, node.lineno, "docstring", text)


def find_wide_functions(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Functions of the product with too many parameters."""
    if _top(path) not in PRODUCT or path.startswith(KERNELS):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        args = [*node.args.posonlyargs, *node.args.args]
        count = len(args) + len(node.args.kwonlyargs)
        count -= bool(args) and args[0].arg in {"self", "cls"}
        if count > PARAMETERS_MAX:
            text = f"{node.name}: {count}, at most {PARAMETERS_MAX}"
            yield Finding(path, node.lineno, "parameters", text)


def find_doubled_classes(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    """Public class names that the product uses for more than one class."""
    first: dict[str, str] = {}
    for path, tree in trees.items():
        if _top(path) not in PRODUCT:
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            other = first.setdefault(node.name, f"{path}:{node.lineno}")
            if other != f"{path}:{node.lineno}":
                yield Finding(path, node.lineno, "class", f"{node.name} is also in {other}")


def find_dead_modules(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    """Product modules that no other product, bench or tools module imports."""
    imported: Counter[str] = Counter()
    for path, tree in trees.items():
        if not path.startswith("tests/"):
            imported.update(set(_imports_of(tree)) - {module_name(path)})
    for path in trees:
        name = module_name(path)
        if _top(path) not in PRODUCT or name in ENTRY_POINTS or imported[name]:
            continue
        if _is_program(trees[path]):
            continue
        if path.endswith("__init__.py") and any(key.startswith(f"{name}.") for key in imported):
            continue  # it is loaded with each of its modules
        yield Finding(path, 1, "dead", f"nothing imports {name}")


def find_dead_names(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    """Functions, methods, classes and constants of the product that only tests use, or nothing."""
    names: dict[str, list[tuple[str, int]]] = {}
    attributes: dict[str, list[tuple[str, int]]] = {}
    for path, tree in trees.items():
        if not path.startswith("tests/"):
            for name, line, is_attribute in _uses_of(tree):
                names.setdefault(name, []).append((path, line))
                if is_attribute:
                    attributes.setdefault(name, []).append((path, line))
    for path, tree in trees.items():
        if _top(path) not in PRODUCT:
            continue
        for name, node, is_method in _definitions_of(tree):
            own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            uses = (attributes if is_method else names).get(name, ())
            if name in CALLED_ELSEWHERE or name.startswith("__"):
                continue
            if all(where == path and line in own for where, line in uses):
                yield Finding(path, node.lineno, "dead", f"nothing uses {name}")


def _uses_of(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Names that code reads, with their lines, and whether it reads them of an object.

    A text that is a name counts too: attributes and functions are looked up by it.
    """
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                yield name, node.lineno, False
            case ast.Attribute(attr=name, ctx=ast.Load()):
                yield name, node.lineno, True
            case ast.alias(name=name):
                yield name.rpartition(".")[2], node.lineno, False
            case ast.MatchClass(kwd_attrs=found):
                yield from ((name, node.lineno, True) for name in found)
            case ast.Constant(value=str(text)) if id(node) not in prose:
                words = re.split(r"[.:]", text)
                yield from ((word, node.lineno, True) for word in words if word.isidentifier())


def _definitions_of(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, bool]]:
    """Functions, classes and module constants, and whether each is a method.

    A function with a decorator that is called (`@field_validator(...)`) is registered by it.
    """
    methods = {
        id(node) for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for node in each.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node, False
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
            isinstance(each, ast.Call) for each in node.decorator_list
        ):
            yield node.name, node, id(node) in methods
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node, False


def module_name(path: str) -> str:
    """Import name of a file: `proxy/net/framing.py` is `keylane.proxy.net.framing`."""
    parts = list(PurePosixPath(path).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    if parts and parts[0] in PRODUCT[1:]:
        parts.insert(0, "keylane")
    return ".".join(parts)


def _find_module_docstring(path: str, tree: ast.Module) -> Iterator[Finding]:
    if not tree.body:
        return  # an empty __init__ says nothing
    docstring = ast.get_docstring(tree)
    if not docstring:
        yield Finding(path, 1, "docstring", "the module has none")


def _names_of(node: ast.AST) -> tuple[str, ...]:
    """The names that a node introduces."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.arg(arg=name) | ast.Name(id=name) | ast.Attribute(attr=name):
            return (name,)
        case _:
            return ()


def _is_program(tree: ast.Module) -> bool:
    """Return whether the module can be started: `python -m` and child processes name it."""
    tests = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
    return "__name__ == '__main__'" in tests


def _imports_of(tree: ast.Module) -> Iterator[str]:
    """Import names a module asks for; `from a import b` counts as both `a` and `a.b`.

    A text that is a module's whole name, or `module:name`, counts too: tables of modules are
    imported by name.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Constant(value=str(text)) if text.startswith("keylane."):
                yield text.partition(":")[0]


def find_all(files: Mapping[str, str]) -> list[Finding]:
    """Every breach in `files` (path to text), in order of place."""
    findings: list[Finding] = []
    trees: dict[str, ast.Module] = {}
    for path, text in files.items():
        findings += find_in_text(path, text)
        if path.endswith(".py"):
            try:
                trees[path] = ast.parse(text)
            except SyntaxError as error:
                findings.append(Finding(path, error.lineno or 1, "syntax", error.msg))
                continue
            findings += find_in_module(path, trees[path])
            findings += find_wide_functions(path, trees[path])
    findings += find_doubled_classes(trees)
    findings += find_dead_modules(trees)
    findings += find_dead_names(trees)
    return sorted(findings, key=lambda finding: (finding.path, finding.line, finding.rule))


def read_tree(root: Path) -> dict[str, str]:
    """Text files that git tracks or would track, by path from `root`; links are left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    paths: Iterable[str] = listed.stdout.split("\0") if listed.returncode == 0 else _walk(root)
    files = {}
    for path in sorted(set(paths)):
        full = root / path
        if path and full.suffix in TEXT_SUFFIXES and full.is_file() and not full.is_symlink():
            try:
                files[path] = full.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a binary file without a suffix
    return files


def _walk(root: Path) -> Iterator[str]:
    """All files of a tree that is no git clone (an unpacked sdist)."""
    for folder in (*PRODUCT, "bench", "tests", "tools"):
        for full in (root / folder).rglob("*.py"):
            path = full.relative_to(root)
            if not any((root / parent).is_symlink() for parent in path.parents):
                yield path.as_posix()


def main() -> int:
    """Print every breach; 1 if there are any."""
    root = Path(__file__).resolve().parent.parent
    files = read_tree(root)
    findings = find_all(files)
    for finding in findings:
        print(finding)
    counts = Counter(finding.rule for finding in findings)
    summary = ", ".join(f"{count} {rule}" for rule, count in sorted(counts.items()))
    print(f"tidy: {len(files)} files, {summary or 'no breach'}", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
