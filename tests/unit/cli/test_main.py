"""keylane/cli/main.py: which commands there are, and the exit code of a wrong one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from keylane import __version__
from keylane.cli.main import build_parser, main


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`keylane --version` prints the package's version and succeeds."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out == f"keylane {__version__}\n"


@pytest.mark.parametrize("command", ["kafka", "proxy"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The main help lists the command, its own help names its arguments."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])

    assert ended.value.code == 0
    assert command in build_parser().format_help()
    assert "usage: keylane " + command in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["fly"], ["kafka"], ["kafka", "--data"]])
def test_wrong_arguments_exit_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A missing or unknown command or argument says so on stderr, with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(argv)

    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_the_module_is_the_command() -> None:
    """`python -m keylane` and the installed command are the same program."""
    done = subprocess.run(
        [sys.executable, "-m", "keylane", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"keylane {__version__}\n"
