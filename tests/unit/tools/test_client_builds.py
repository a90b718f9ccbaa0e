"""tests/clients/builds.py: what a machine lacks skips tests, what is wrong here fails them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.clients import builds
from tests.clients.builds import CLIENTS, ClientMissing, find_member

NPM_OFFLINE = """npm error code ECONNREFUSED
npm error syscall connect
npm error FetchError: request to it failed, reason: connect ECONNREFUSED
npm error     at ClientRequest.<anonymous> (index.js:130:14)
npm error A complete log of this run can be found in: debug-0.log"""

GO_1_19 = """go: errors parsing go.mod:
go.mod:3: invalid go version '1.26.0': must match format 1.23"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, an empty cache, and nothing remembered."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("_build_go", "_install_js", "_build_confluent"):
        build = getattr(builds, name).__wrapped__
        monkeypatch.setattr(builds, name, builds._remembered(build))
    return tmp_path


def make(folder: Path, name: str, script: str) -> None:
    """Put a program on PATH that is a script of the shell, and counts its runs."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho run >> {folder / 'runs'}-{name}\n{script}\n")
    program.chmod(0o755)


def failing(text: str) -> str:
    """A script that fails with a text."""
    return f"/bin/cat >&2 <<'END'\n{text}\nEND\nexit 1"


@pytest.mark.parametrize(
    ("client", "programs", "reason"),
    [
        ("sarama", {}, "go is not on PATH"),
        ("kafkajs", {}, "node is not on PATH"),
        ("kafkajs", {"node": "echo v20.1.0"}, "npm is not on PATH"),
        ("kafkajs", {"node": "echo v18.20.4", "npm": ""}, "node is 18.20.4, and 20 is needed"),
        (
            "kafkajs",
            {"node": "echo v20.1.0", "npm": failing(NPM_OFFLINE)},
            "npm ci: npm error FetchError: .* reason: connect ECONNREFUSED",
        ),
        (
            "kafkajs",
            {"node": "echo v20.1.0", "npm": failing("npm error code E401\nnpm error A log")},
            "npm ci: npm error code E401",
        ),
        (
            "franz-go",
            {"go": failing("go: downloading x\ngo: dial tcp: no such host")},
            "go mod: go: dial tcp: no such host",
        ),
        ("franz-go", {"go": "exit 1"}, "go mod: it gives no reason"),
        ("franz-go", {"go": failing(GO_1_19)}, "go mod: go.mod:3: invalid go version '1.26.0'"),
    ],
)
def test_what_the_machine_lacks_is_named(
    client: str, programs: dict[str, str], reason: str, tools: Path
) -> None:
    """A program, a version or a registry: the line with the reason, which a skipped test shows."""
    for name, script in programs.items():
        make(tools, name, script)

    with pytest.raises(ClientMissing, match=reason):
        find_member(client)


def test_a_registry_that_hangs_is_missing(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that does not end skips its tests as well."""
    make(tools, "go", "exec /bin/sleep 60")
    monkeypatch.setattr(builds, "TIMEOUT_S", 0.2)

    with pytest.raises(ClientMissing, match=r"go mod: not done in 0\.2 s"):
        find_member("sarama")


def test_a_registry_is_given_up_once(tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All clients of a language have the reason of the first, and nothing fails."""
    make(tools, "go", "exit 1")
    make(tools, "node", "echo v20.1.0")
    make(tools, "npm", failing(NPM_OFFLINE))

    assert builds.main([]) == 0
    assert builds.main([]) == 0

    assert capsys.readouterr().out.count("is left out: ") == 2 * len(CLIENTS)
    assert (tools / "runs-go").read_text() == "run\n"
    assert (tools / "runs-npm").read_text() == "run\n"


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("kafkajs", "npm error code EINTEGRITY"),
        ("kafkajs", "npm error code EUSAGE"),
        ("sarama", "verifying x: checksum mismatch\nSECURITY ERROR"),
        ("sarama", "go: errors parsing go.mod:"),
    ],
)
def test_a_wrong_lock_or_package_fails(
    client: str, text: str, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no other machine would make good skips nothing."""
    make(tools, "node", "echo v20.1.0")
    for name in ("go", "npm"):
        make(tools, name, failing(text))

    with pytest.raises(subprocess.CalledProcessError):
        find_member(client)

    assert builds.main([]) == 1
    assert text in capsys.readouterr().out


def test_members_are_built_once(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that failed is done again by the next process; one that is whole is not."""
    make(tools, "node", "echo v20.1.0")
    make(tools, "npm", failing(NPM_OFFLINE))
    with pytest.raises(ClientMissing):
        find_member("kafkajs")
    make(tools, "npm", "exit 0")
    again = builds._remembered(builds._install_js.__wrapped__)  # type: ignore[attr-defined]
    monkeypatch.setattr(builds, "_install_js", again)

    command = find_member("kafkajs")
    (tools / "npm").unlink()
    (Path(command[1]).parent / "member.js").unlink()

    assert find_member("kafkajs") == command
    assert Path(command[1]).read_bytes() == (builds.JS / "kafkajs.js").read_bytes()
    assert (Path(command[1]).parent / "member.js").exists()
