"""The allocator's settings are taken where it is glibc's."""

from __future__ import annotations

import platform
import subprocess
import sys


def test_glibc_takes_the_settings() -> None:
    """A value beyond its bounds would be refused; in a separate process, as it holds for good."""
    code = "from keylane.proxy.runtime.heap import keep_freed_memory; print(keep_freed_memory())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(platform.libc_ver()[0] == "glibc")


def test_freed_memory_goes_back() -> None:
    """Of buffers that were kept between others, also far from the end of the heap."""
    code = (
        "import os; from pathlib import Path\n"
        "from keylane.proxy.runtime.heap import give_back, keep_freed_memory\n"
        "size = lambda: int(Path('/proc/self/statm').read_text().split()[1]) * 4096\n"
        "keep_freed_memory()\n"
        "kept = [bytes(b'x' * 100_000) for _ in range(4000)]\n"
        "full = size(); del kept[:-1]; give_back(); print(size() < full - 200_000_000)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True" or platform.libc_ver()[0] != "glibc"


def test_what_the_start_made_is_not_searched_again() -> None:
    """Paused while it starts; then on, with all that is there set aside."""
    code = (
        "import gc; from keylane.proxy.runtime.heap import pause_collection, resume_collection\n"
        "pause_collection(); print(gc.isenabled())\n"
        "resume_collection(); print(gc.isenabled(), gc.get_freeze_count() > 1000)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "True", "True"]
