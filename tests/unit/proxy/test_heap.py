"""The allocator's settings are taken where it is glibc's."""

from __future__ import annotations

import platform
import subprocess
import sys


def test_glibc_takes_the_settings() -> None:
    """A value out of its range would be refused; in a process of its own, as it holds for good."""
    code = "from keylane.proxy.heap import keep_freed_memory; print(keep_freed_memory())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(platform.libc_ver()[0] == "glibc")
