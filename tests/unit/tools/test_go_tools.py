"""tools/go_tools.py: a program that cannot be had is named with its reason; a false sum fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import go_tools
from tools.go_tools import HELM, GoToolMissing, ModuleAltered, download_module, find_tool

MODULE = "example.com/crds@v1.0.0"


@pytest.fixture
def no_helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Helm; the folder is its whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(HELM.variable, raising=False)
    # A shell complains on stderr of a locale that the machine lacks.
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return tmp_path


def make_go(folder: Path, script: str) -> None:
    """Put a `go` on PATH that is a script of the shell."""
    go = folder / "go"
    go.write_text(f"#!/bin/sh\n{script}\n")
    go.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "neither helm nor go is on PATH"),
        ("echo dial tcp: no such host >&2; exit 1", "go cannot build it: dial tcp: no such host"),
        ("exit 1", "go cannot build it: go said nothing"),
    ],
)
def test_a_missing_program_fails_nothing(
    script: str | None, reason: str, no_helm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is on stderr; stdout, which scripts read, stays empty."""
    if script is not None:
        make_go(no_helm, script)

    assert go_tools.main([]) == 0

    out, err = capsys.readouterr()
    assert out == ""
    assert f"no helm, tests that need it are skipped: {reason}" in err


def test_a_program_is_built_once(no_helm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What go has put into GOBIN is moved to its place, and found there without go."""
    make_go(no_helm, 'echo built > "$GOBIN/helm"')

    built = find_tool(HELM)
    (no_helm / "go").unlink()

    assert built.read_text() == "built\n"
    assert find_tool(HELM) == built
    assert "building helm.sh/helm" in capsys.readouterr().err


def test_an_altered_download_is_no_missing_program(
    no_helm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests are not skipped because a sum is wrong: the set-up fails."""
    make_go(no_helm, "echo verifying helm: checksum mismatch >&2; exit 1")

    assert go_tools.main(["helm"]) == 1

    assert "helm: verifying helm: checksum mismatch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ('{"Error": "no such host"}', GoToolMissing, f"go cannot fetch {MODULE}: no such host"),
        ("", GoToolMissing, f"go cannot fetch {MODULE}: "),
        ('{"Error": "x: checksum mismatch"}', ModuleAltered, "x: checksum mismatch"),
        ('{"Sum": "h1:b=", "Dir": "/m"}', ModuleAltered, "has the sum h1:b=, expected h1:a="),
    ],
)
def test_a_module_has_its_sum(
    answer: str, error: type[Exception], text: str, no_helm: Path
) -> None:
    """Only a module that cannot be had is missing."""
    make_go(no_helm, f"echo '{answer}'")

    with pytest.raises(error, match=text):
        download_module(MODULE, "h1:a=")


def test_a_module_is_a_folder(no_helm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with the known sum is where go has put it; a go that hangs is given up."""
    make_go(no_helm, """echo '{"Sum": "h1:a=", "Dir": "/m"}'""")
    assert download_module(MODULE, "h1:a=") == Path("/m")

    make_go(no_helm, "exec /bin/sleep 60")
    monkeypatch.setattr(go_tools, "DOWNLOAD_TIMEOUT_S", 0.1)
    with pytest.raises(GoToolMissing, match=r"did not fetch .* in 0\.1 s"):
        download_module(MODULE, "h1:a=")
