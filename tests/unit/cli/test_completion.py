"""keylane/cli/completion.py: a script for each shell, and what it asks for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from keylane.cli.completion import SHELLS, VARIABLE
from keylane.cli.main import main


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It asks `keylane` by the variable that click looks for."""
    assert main(["completion", shell]) == 0

    script = capsys.readouterr().out
    assert f"{VARIABLE}={shell}_complete" in script
    assert "keylane" in script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("keylane re", {"plain,rebalance", "plain,reset-offsets"}),
        ("keylane proxy --l", {"plain,--listen", "plain,--lanes"}),
    ],
)
def test_words_are_completed(words: str, expected: set[str]) -> None:
    """Commands and options, as bash asks for them."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}

    done = subprocess.run(
        [sys.executable, "-c", "from keylane.cli.main import main; main()"],
        env=os.environ | asked | {VARIABLE: "bash_complete"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert set(done.stdout.split()) == expected


def test_the_bash_script_is_bash(capsys: pytest.CaptureFixture[str]) -> None:
    """Its syntax is right."""
    main(["completion", "bash"])

    done = subprocess.run(
        ["bash", "-n"],
        input=capsys.readouterr().out,
        env=os.environ | {"LC_ALL": "C"},  # bash warns of a locale that is not installed
        text=True,
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
