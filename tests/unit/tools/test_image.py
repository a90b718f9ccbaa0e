"""Dockerfile, its scripts and the chart agree: installed parts, the user, the ports."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from tools import set_up

ROOT: Final = Path(__file__).resolve().parents[3]
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text(encoding="utf-8")
VALUES: Final = yaml.safe_load((ROOT / "helm/keylane/values.yaml").read_text(encoding="utf-8"))
SCRIPTS: Final = sorted((ROOT / "tools").glob("image_*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_posix_shell(script: Path) -> None:
    """`sh -n` reads each of them; those that are started can be."""
    done = subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    is_sourced = not script.read_text(encoding="utf-8").startswith("#!")
    assert is_sourced or script.stat().st_mode & 0o111


def test_the_build_gets_what_it_installs_from() -> None:
    """.dockerignore lets through each folder and file that image_build.sh reads."""
    script = (ROOT / "tools/image_build.sh").read_text(encoding="utf-8")
    listed = re.search(r"tar -cf - (.*?)\\\n\s+\$\(for part in ([^;]*);", script, re.DOTALL)
    assert listed is not None
    read = set(re.findall(r'\$tree/((?:tools|requirements)/[\w.-]+\.\w+)"', script))
    locks = re.search(r"for lock in ([a-z ]+); do", script)
    assert locks is not None
    read |= {f"requirements/lock-{name}.txt" for name in locks[1].split()}
    scripts = {f"tools/{path.name}" for path in SCRIPTS}
    wanted = {*listed[1].split(), *listed[2].split(), *scripts, *read}
    links = {path.name for path in (ROOT / "keylane").iterdir() if path.is_symlink()}

    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    allowed = {line.removeprefix("!").rstrip("/") for line in lines if line.startswith("!")}
    assert allowed == wanted
    assert links <= wanted, "the package is made of these"
    assert all((ROOT / name).exists() for name in read)


def test_nothing_is_fetched_without_a_sum() -> None:
    """Each call of pip takes a lock with hashes or nothing; set-up and image alike."""
    script = (ROOT / "tools/image_build.sh").read_text(encoding="utf-8").replace("\\\n", " ")
    calls = [line.strip() for line in script.splitlines() if re.match(r" *pip (install|wh)", line)]

    (locked, built, own) = calls
    assert all("--no-deps" in line for line in calls)
    assert "--require-hashes" in locked and "--only-binary :all:" in locked
    assert "--no-build-isolation" in built and built.endswith('"$copy"')
    assert "--no-index" in own and own.endswith(" keylane")
    assert "--require-hashes" in set_up.LOCKED and "--no-deps" in set_up.LOCKED


def test_the_base_image_has_a_digest_or_there_is_no_image() -> None:
    """No default, no tag in any FROM, and a build without a digest ends."""
    lines = DOCKERFILE.splitlines()

    assert "ARG PYTHON_IMAGE" in lines
    assert [line.split()[1] for line in lines if line.startswith("FROM ")] == [
        "${PYTHON_IMAGE}"
    ] * 2
    assert 'case "$PYTHON_IMAGE" in *@sha256:*)' in DOCKERFILE
    assert not lines[0].startswith("# syntax="), "a frontend by its tag"
    base = ROOT / "requirements/base-image.txt"
    if base.exists():
        text = base.read_text(encoding="utf-8")
        assert re.fullmatch(r"[a-z0-9./:_-]+@sha256:[0-9a-f]{64}\n", text)


def test_the_image_runs_as_the_charts_user() -> None:
    """USER is a number, which Kubernetes can compare with root's, and the chart's."""
    user = re.search(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)

    assert user is not None
    context = VALUES["podSecurityContext"]
    assert (int(user[1]), int(user[2])) == (context["runAsUser"], context["runAsGroup"])


def test_ports_and_paths_are_the_charts() -> None:
    """EXPOSE has the chart's ports, the default command the file that the chart mounts."""
    ports = VALUES["ports"]

    assert f"EXPOSE {ports['kafka']} {ports['control']}\n" in DOCKERFILE
    assert f"127.0.0.1:{ports['control']}/readyz" in DOCKERFILE
    statefulset = (ROOT / "helm/keylane/templates/statefulset.yaml").read_text(encoding="utf-8")
    command = re.search(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    arguments = re.search(r"^ +args: (\[proxy.*\])$", statefulset, re.MULTILINE)
    assert command is not None and arguments is not None
    assert yaml.safe_load(command[1]) == yaml.safe_load(arguments[1])
