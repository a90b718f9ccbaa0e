"""Run every small benchmark of bench/micro and print its lines."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_S: Final = 300.0
"""Seconds that a small benchmark may take."""


def main(names: Sequence[str]) -> int:
    """Run the named benchmarks, or all."""
    folder = ROOT / "bench" / "micro"
    found = sorted(path.stem for path in folder.glob("[a-z]*.py") if path.stem != "conftest")
    print(f"machine: {describe_machine()}")
    failed = [name for name in names or found if not run_one(name)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def describe_machine() -> str:
    """Return cores, memory, system and Python, on which figures depend."""
    memory_gb = psutil.virtual_memory().total / 1024**3
    cores = psutil.cpu_count()
    python = platform.python_version()
    return f"{cores} cores, {memory_gb:.0f} GB, {platform.system()} {platform.machine()}, {python}"


def run_one(name: str) -> bool:
    """Run one benchmark with this process' output; return whether it succeeded."""
    print(f"\n{name}", flush=True)
    command = [sys.executable, "-m", f"bench.micro.{name}"]
    began_s = time.monotonic()
    try:
        code = subprocess.run(command, cwd=ROOT, timeout=TIMEOUT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"{name}: longer than {TIMEOUT_S:.0f} s", file=sys.stderr)
        return False
    print(f"took {time.monotonic() - began_s:.0f} s", flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
