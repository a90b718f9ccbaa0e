"""HAProxy as a plain TCP relay in front of the benchmark's Kafka: the fastest thing in that place.

In:    ports.  Out: a running HAProxy with its pid; or why there is none.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Final, Self

from keylane.embedded.resolve import cache_folder

PACKAGES: Final = ("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
"""HAProxy and those of its libraries that a small Debian lacks."""
START_TIMEOUT_S: Final = 10.0
CONFIG: Final = """\
global
  maxconn 4000
  nbthread 1
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen kafka
  bind 127.0.0.1:{port}
  server broker {upstream}
"""
"""One thread, as keylane's loop is one; everything else is HAProxy's default."""


class HaproxyMissing(Exception):
    """There is no HAProxy on this machine, and why."""


class Haproxy:
    """One running HAProxy."""

    name = "haproxy"

    def __init__(self, folder: Path, port: int, upstream: str) -> None:
        """Plan it. Raises: HaproxyMissing."""
        self._command, self._environment = find_haproxy()
        self._port = port
        self.address = f"127.0.0.1:{port}"
        self._config = folder / "haproxy.cfg"
        self._config.write_text(CONFIG.format(port=port, upstream=upstream))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def version(self) -> str:
        """Return what it says of itself."""
        done = subprocess.run(
            [self._command, "-v"], env=self._environment, capture_output=True, check=True, text=True
        )
        return done.stdout.split()[2]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [self._command, "-f", str(self._config), "-db"], env=self._environment
        )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _accepts(self._port):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise HaproxyMissing("haproxy did not start")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)


def find_haproxy() -> tuple[str, dict[str, str]]:
    """Its path and environment. Raises: HaproxyMissing."""
    found = shutil.which("haproxy")
    if found is not None:
        return found, dict(os.environ)
    folder = cache_folder() / "haproxy"
    binary = folder / "usr" / "sbin" / "haproxy"
    if not binary.exists():
        _unpack(folder)
    libraries = sorted({str(path.parent) for path in folder.glob("usr/lib/*/*.so*")})
    return str(binary), {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise HaproxyMissing("haproxy is not on PATH, and this is no Debian")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", *PACKAGES], cwd=folder, check=True, capture_output=True
        )
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise HaproxyMissing(f"haproxy is not on PATH; apt-get: {error.stderr[-200:]!r}") from error


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
