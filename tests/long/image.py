"""Build the image by its Dockerfile without Docker, twice, compare, and serve from it.

`python -m tests.long.image` (as root on Linux, with Debian's packages buildah and debootstrap; a
few minutes). The base is a fresh Debian with Python, in the place of an image of a registry. Both
builds must be the same bytes below /opt/keylane. Then the entry point runs as the image's user on a
root file system that cannot be written, in front of a real Kafka, until the image's health check
passes; and ends by SIGTERM.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from keylane.embedded import EmbeddedKafka
from keylane.embedded.ports import find_free_port

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = ("buildah", "debootstrap", "unshare", "chroot")
BASE: Final = "localhost/python"
HOME: Final = "opt/keylane"
READY_TIMEOUT_S: Final = 120.0
PROBE_PAUSE_S: Final = 1.0
"""Between two health checks: a container runtime also asks at an interval."""
MOUNTS: Final = """
set -e
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount -t proc proc "$1/proc"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$1/tmp"
mount --bind /etc/hosts "$1/etc/hosts"
root=$1 user=$2; shift 2
exec chroot --userspec="$user" "$root" "$@"
"""
"""What a container runtime does: a root that cannot be written, /proc, /tmp in memory, a user."""


class Buildah:
    """buildah with its store in one folder."""

    def __init__(self, folder: Path) -> None:
        self._store = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]
        self._policy = folder / "policy.json"
        self._policy.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))

    def run(self, *args: str) -> str:
        """Return what buildah prints. Raises: subprocess.CalledProcessError."""
        return subprocess.run(
            ["buildah", *self._store, *args],
            env=os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.strip()

    def import_base(self, root: Path) -> str:
        """Return the name and digest of an image that holds a folder."""
        container = self.run("from", "scratch")
        self.run("copy", "--quiet", container, str(root), "/")
        self.run("commit", "--quiet", "--rm", container, BASE)
        digest = self.run("inspect", "--type", "image", "--format", "{{.FromImageDigest}}", BASE)
        return f"{BASE}@{digest}"

    def build(self, base: str, name: str) -> Path:
        """Build the Dockerfile; return the folder with the image's root."""
        # The machine's own settings of pip, for another index or authority.
        settings = (os.environ.get("PIP_CONFIG_FILE", "/etc/pip.conf"), "/etc/pip.conf")
        authority = "/etc/ssl/certs/ca-certificates.crt"
        volumes = [
            f"--volume={source}:{target}:ro"
            for source, target in (settings, (authority, authority))
            if Path(source).exists()
        ]
        self.run(
            "build", "--no-cache", "--pull-never", "--format", "docker", "--signature-policy",
            str(self._policy), "--build-arg", f"PYTHON_IMAGE={base}", *volumes, "--tag", name,
            str(ROOT),
        )  # fmt: skip
        return Path(self.run("mount", self.run("from", name)))

    def configuration(self, name: str) -> Any:
        """Return what the image says of its start: user, entry point, health check."""
        found: Any = json.loads(self.run("inspect", "--type", "image", name))
        return found["Docker"]["config"]


def differences(left: Path, right: Path) -> Iterator[str]:
    """Files below two folders that are not the same bytes, or are in one of them only."""
    compared = filecmp.dircmp(left, right, ignore=[], hide=[])
    for name in compared.left_only + compared.right_only + compared.funny_files:
        yield str(left / name)
    _, wrong, errors = filecmp.cmpfiles(left, right, compared.common_files, shallow=False)
    yield from (str(left / name) for name in wrong + errors)
    for name in compared.common_dirs:
        if not (left / name).is_symlink():
            yield from differences(left / name, right / name)


def serve(root: Path, config: Any, folder: Path) -> int:
    """Run the image in front of a Kafka until it is healthy; return its exit code at SIGTERM."""
    first = find_free_port(in_a_row=8)
    health = f"http://127.0.0.1:{first + 7}/readyz"
    variables = dict(each.split("=", 1) for each in config["Env"]) | {"KEYLANE_HEALTH": health}
    isolated = ["unshare", "--mount", "sh", "-c", MOUNTS, "sh", str(root), config["User"]]
    with EmbeddedKafka(folder / "kafka") as kafka:
        arguments = [
            "proxy", "--bootstrap", kafka.bootstrap, "--listen", f"127.0.0.1:{first}",
            "--control", f"127.0.0.1:{first + 7}", "--lanes", "orders=4",
        ]  # fmt: skip
        node = subprocess.Popen([*isolated, *config["Entrypoint"], *arguments], env=variables)
        try:
            deadline = time.monotonic() + READY_TIMEOUT_S
            probe = [*isolated, *config["Healthcheck"]["Test"][1:]]
            while subprocess.run(probe, env=variables, capture_output=True, check=False).returncode:
                if node.poll() is not None or time.monotonic() > deadline:
                    return node.poll() or 1
                time.sleep(PROBE_PAUSE_S)
            print(f"healthy: {health}", flush=True)
            node.send_signal(getattr(signal, config["StopSignal"]))
            return node.wait(60)
        finally:
            node.kill()


def main(argv: list[str] | None = None) -> int:
    """Build, compare, serve; 1 when something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--mirror", help="of Debian; debootstrap's own by default")
    mirror = parser.parse_args(argv).mirror
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.getuid() != 0:
        missing.append("root")
    if missing:
        print(f"missing: {', '.join(missing)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="keylane-image-") as name:
        folder = Path(name)
        subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates",
             "bookworm", str(folder / "base"), *([mirror] if mirror else [])],
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        buildah = Buildah(folder)
        base = buildah.import_base(folder / "base")
        roots = [buildah.build(base, f"localhost/keylane-{turn}") for turn in ("first", "second")]
        try:
            different = list(differences(*(root / HOME for root in roots)))
            print(f"two builds: {len(different)} files differ", *different[:20], sep="\n")
            code = serve(roots[0], buildah.configuration("localhost/keylane-first"), folder)
            print(f"exit code at SIGTERM: {code}")
        finally:
            buildah.run("umount", "--all")
    return 1 if different or code else 0


if __name__ == "__main__":
    sys.exit(main())
