"""tools/tidy.py: it holds for this tree, and it sees each breach that it is there for."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import tidy

ROOT = Path(__file__).resolve().parents[3]
MODULE = '"""A thing."""\n'


def test_the_tree_is_tidy() -> None:
    """No file of the project breaches the house style; a breach is listed with its place."""
    findings = tidy.find_all(tidy.read_tree(ROOT))

    assert not findings, "\n" + "\n".join(map(str, findings))


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("proxy/x.py", "loop.create_task(run())"),
        ("proxy/x.py", "started = time.time()"),
        ("cache/x.py", "time.sleep(1)"),
        ("keylane/x.py", "loop = asyncio.get_event_loop()"),
        ("keylane/x.py", "    except:"),
        ("docs/x.md", "Nobody is asked."),
        ("proxy/x.py", "told_s = 1.0"),
        ("tests/unit/test_x.py", "# as of the last commit"),
        ("cache/x.py", "Source: REQUIREMENTS S004-45."),
        ("assignor/x.py", "# see G-17"),
        ("pipeline/x.py", "Next:  `job` calls it."),
        ("proxy/x.py", '    """What a client asked for."""'),
        ("proxy/x.py", "Source: SPARK section 9."),
        ("proxy/apis/x.py", "from ..topics import LaneView"),
        ("keylane/x.py", "# TODO: later"),
        ("keylane/x.py", "# ========== helpers"),
        ("README.md", "see /home/somebody/notes"),
    ],
)
def test_banned_text_is_found(path: str, line: str) -> None:
    """A line with a banned word is a breach, with its number."""
    text = f"first\n{line}\n"

    findings = list(tidy.find_in_text(path, text))

    assert [(finding.line, finding.rule) for finding in findings] == [(2, "ban")]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("keylane/tasks.py", "loop.create_task(run())"),
        ("tests/unit/x.py", "time.sleep(1)"),
        ("keylane/x.py", "# TODO (#12): when brokers answer it"),
        ("keylane/x.py", "from .topics import LaneView"),
        ("keylane/x.py", "except OSError:"),
        ("README.md", "files under build/work/part"),
    ],
)
def test_allowed_text_is_left_alone(path: str, line: str) -> None:
    """What only looks like a banned word, or stands where it belongs, is no breach."""
    assert list(tidy.find_in_text(path, line)) == []


def test_long_lines_and_modules_are_found() -> None:
    """101 columns are one too many, and so are 501 lines."""
    text = "x" * 101 + "\n" * 501

    rules = [finding.rule for finding in tidy.find_in_text("keylane/x.py", text)]

    assert rules == ["columns", "module"]


def test_a_long_function_is_found() -> None:
    """A function of 61 lines is a breach; one of 60 is none."""
    body = "    x = 1\n"
    text = MODULE + "def fits():\n" + body * 59 + "def grew():\n" + body * 60

    findings = list(tidy.find_in_module("keylane/x.py", ast.parse(text)))

    assert [finding.text for finding in findings] == ["grew: 61 lines, at most 60"]


def test_names_are_ascii() -> None:
    """A Greek letter is refused as a name, and allowed in a text."""
    text = MODULE + "\u03bc = '\u03bc'\n"

    findings = list(tidy.find_in_module("keylane/x.py", ast.parse(text)))

    assert [finding.rule for finding in findings] == ["ascii"]


def test_a_module_has_a_docstring() -> None:
    """A module without one is a breach; an empty file is none."""
    silent = list(tidy.find_in_module("proxy/x.py", ast.parse("x = 1")))
    empty = list(tidy.find_in_module("proxy/x.py", ast.parse("")))

    assert [finding.text for finding in silent] == ["the module has none"]
    assert empty == []


def test_a_test_says_what_holds() -> None:
    """A test without a docstring is a breach; a helper without one is none."""
    tree = ast.parse('"""Tests."""\ndef test_x(): pass\nasync def test_y(): pass\ndef help(): pass')

    findings = list(tidy.find_in_module("tests/unit/test_x.py", tree))

    assert [finding.text.split(":")[0] for finding in findings] == ["test_x", "test_y"]


def test_a_function_of_many_parameters_is_found() -> None:
    """Eight parameters are a breach in the product: `self` is none, and a kernel may have them."""
    text = MODULE + "class A:\n def fits(self, a, b, c, /, d, e, *, f, g): pass\n"
    tree = ast.parse(text + "def grew(a, b, c, d, e, f, g, *, h): pass")

    found = {path: list(tidy.find_wide_functions(path, tree)) for path in ("proxy/x.py", "bench/x")}

    assert [finding.text for finding in found["proxy/x.py"]] == ["grew: 8, at most 7"]
    assert not found["bench/x"]
    assert not list(tidy.find_wide_functions("keylane/kernel/x.py", tree))


def test_a_class_name_is_used_once() -> None:
    """A second public class of a name is a breach; private ones and tests may have it."""
    sources = {
        "cache/a.py": "class Run: pass\nclass _Held: pass",
        "proxy/b.py": "class Run: pass\nclass _Held: pass\nclass Other: pass",
        "tests/c.py": "class Run: pass",
    }

    findings = tidy.find_doubled_classes({path: ast.parse(text) for path, text in sources.items()})

    assert [str(f) for f in findings] == ["proxy/b.py:1: class: Run is also in cache/a.py:1"]


def test_dead_modules_are_found() -> None:
    """A module that only its own test imports is dead; a package lives by its modules."""
    sources = {
        "keylane/cli/main.py": "from keylane.proxy.server import run\n"
        "KINDS = ['keylane.kind', 'keylane.word:run']",
        "keylane/kind.py": "",
        "keylane/word.py": "",
        "keylane/__main__.py": "from keylane.cli.main import main",
        "proxy/__init__.py": '"""The proxy."""',
        "proxy/server.py": "import keylane.proxy.topics.registry",
        "proxy/topics/registry.py": "import keylane.proxy.topics.registry",
        "proxy/orphan.py": "",
        "proxy/child.py": "if __name__ == '__main__':\n    run()",
        "tests/unit/proxy/test_orphan.py": "from keylane.proxy import orphan",
    }

    findings = tidy.find_dead_modules({path: ast.parse(text) for path, text in sources.items()})

    assert [finding.path for finding in findings] == ["proxy/orphan.py"]


def test_dead_names_are_found() -> None:
    """A name that only its own body or a test uses is dead; a text that is a name is a use."""
    sources = {
        "proxy/a.py": """
LIMIT = 1
SPENT, KEPT = 2, 3
class Held:
    @field_validator("x")
    def checked(self): return LIMIT
    def again(self): return self.again()
    def looked_up(self): return used()
    def local(self): return getattr(self, "looked_up")
    def data_received(self, data): local = data; return local
def used(): "See `unused`."
def unused(): pass
""",
        "bench/b.py": "from keylane.proxy.a import Held\nHeld()",
        "tests/c.py": "from keylane.proxy.a import unused\nunused()\nHeld().again()",
    }

    findings = tidy.find_dead_names({path: ast.parse(text) for path, text in sources.items()})

    names = [finding.text.rpartition(" ")[2] for finding in findings]
    assert sorted(names) == ["again", "local", "unused"]


def test_text_that_is_no_python_is_a_finding() -> None:
    """A syntax error is listed like any breach; the other files are still looked at."""
    files = {"tools/a.py": "def", "tools/b.py": "x = 1\n"}

    findings = tidy.find_all(files)

    assert [(finding.path, finding.rule) for finding in findings] == [
        ("tools/a.py", "syntax"),
        ("tools/b.py", "docstring"),
    ]
