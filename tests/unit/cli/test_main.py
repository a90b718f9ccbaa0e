"""keylane/cli/main.py: the commands, what each loads, and one line for what is wrong."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from keylane import __version__
from keylane.cli.main import COMMANDS, keylane, main


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`keylane --version` prints the package's version and succeeds."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"keylane {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its help begins with its usage, and each of its options has a meaning."""
    found = keylane.get_command(click.Context(keylane), command)

    assert main([command, "--help"]) == 0
    assert f"Usage: keylane {command}" in capsys.readouterr().out
    assert found is not None
    for option in found.params:
        assert not isinstance(option, click.Option) or option.hidden or option.help, option.name


def test_help_lists_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with a line; an unknown name is none of them."""
    assert main(["--help"]) == 0

    shown = capsys.readouterr().out
    assert all(f"\n  {name}  " in shown.replace(name, f"{name}  ") for name in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([], "keylane: no command; it is one of proxy, kafka,"),
        (["fly"], "keylane: no command fly; see keylane --help"),
        (["describ"], "keylane: no command describ; did you mean describe?"),
        (["kafka"], "keylane kafka: --data DIR is missing (data and logs; kept)"),
        (["kafka", "--data"], "keylane kafka: --data: needs a value"),
        (["rebalance", "--execute=1"], "keylane rebalance: --execute: takes no value"),
        (["kafka", "--data", "d", "--port", "x"], "keylane kafka: --port: 'x' is not a valid int"),
        (["drain", "--node", "x"], "keylane drain: --node: 'x' is not a valid integer\n"),
        (["kafka", "--data", "d", "--property", "x"], "keylane kafka: --property x: expected KEY="),
        (["proxy", "--lane", "x=1"], "keylane proxy: no option --lane; did you mean --lanes?"),
        (["proxy", "--zzz"], "keylane proxy: no option --zzz; see keylane proxy --help"),
        (["proxy", "extra"], "keylane proxy: unexpected argument extra; see keylane proxy --help"),
        (["proxy", "--set", "nonsense"], "keylane proxy: --set nonsense: expected KEY=VALUE"),
        (["spark", "profil"], "keylane spark: no command profil; did you mean profile?"),
        (["spark", "jars", "--t"], "keylane spark jars: no option --t; did you mean --to?"),
        (["plan", "no/such", "--lanes", "2"], "keylane plan: no/such: No such file or directory"),
        (["describe"], "keylane describe: --group, "),
        (
            ["describe", "--group", "g", "--topics"],
            "keylane describe: --topics: cannot stand beside --group",
        ),
    ],
)
def test_wrong_arguments_are_one_line(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the command, the thing and the cure; exit code 2, nothing on stdout."""
    assert main(argv) == 2

    out, err = capsys.readouterr()
    assert err.startswith(line)
    assert (err.count("\n"), out) == (1, "")


def test_an_option_is_never_abbreviated() -> None:
    """A later option could make another meaning of what a script has."""
    assert main(["kafka", "--dat", "d"]) == 2
    assert main(["spark", "checkpoint", "f", "--from", "a", "--to", "b", "--wri"]) == 2


def test_a_level_of_the_log_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The variable is named, with the levels there are."""
    monkeypatch.setenv("KEYLANE_LOG", "loud")

    assert main(["proxy", "--bootstrap", "127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == (
        "keylane proxy: KEYLANE_LOG=loud: expected one of debug, info, warning, error, critical\n"
    )


def test_the_proxy_loads_no_other_command() -> None:
    """While it starts, clients wait for what is imported."""
    others = [target.partition(":")[0] for name, target in COMMANDS.items() if name != "proxy"]
    program = (
        "import sys; from keylane.cli.main import main; code = main(['proxy', '--help']);"
        f"sys.exit([name for name in {others!r} if name in sys.modules] or code)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_the_module_is_the_command() -> None:
    """`python -m keylane` and the installed command are the same program."""
    done = subprocess.run(
        [sys.executable, "-m", "keylane", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"keylane {__version__}\n"
