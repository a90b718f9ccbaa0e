"""Make the virtual environment that every `make` target runs in. Safe to run side by side.

In:    argv: the environment's folder, the stamp file, a lock if it is for tools only.
Out:   an environment with keylane (as it stands in the tree) and all that its tests need, or the
       tools of the lock; the stamp is written last.
Standard library only, and syntax of old Pythons, so that a machine that lacks something gets a
message and no traceback.
"""

import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import IO

PYTHON_MIN = (3, 11)
BUILD_LOCK = "requirements/lock-build.txt"
TEST_LOCK = "requirements/lock-test.txt"
# Each file has a sum that the lock names, and nothing is installed that is in no lock. What is
# built from source is built by what the build lock has, not by what pip would fetch for it.
LOCKED = ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
FROM_SOURCE = ["--no-build-isolation", "--no-binary", "pyspark"]  # it has no wheels


def main(argv: list) -> int:  # type: ignore[type-arg]  # an old Python cannot read list[str]
    """Set up and return the exit code: 0 done, 1 failed with a line that says why."""
    folder, stamp, *locks = map(Path, argv)
    started_s = time.monotonic()
    folder.parent.mkdir(exist_ok=True)
    with open(folder.parent / (folder.name + ".lock"), "w") as lock:
        wait_for(lock)
        inputs = locks or [Path("pyproject.toml"), Path(BUILD_LOCK), Path(TEST_LOCK)]
        newest_s = max(path.stat().st_mtime for path in inputs)
        if stamp.exists() and stamp.stat().st_mtime > newest_s:
            return 0  # another `make` was faster
        print(f"setting up {folder} (Python {sys.version.split()[0]}), once", flush=True)
        python = folder / "bin" / "python"
        if not has_pip(python):  # new, or cut off in the middle
            venv.create(folder, with_pip=True, clear=True)
        install(python, [str(path) for path in locks])
        stamp.touch()
    print(f"{folder} ready after {time.monotonic() - started_s:.0f} s", flush=True)
    return 0


def install(python: Path, locks: list) -> None:  # type: ignore[type-arg]  # same
    """Install what the locks name; those of keylane and its tests where `locks` is empty."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    add = [*pip, "install", "--quiet"]
    for lock in locks:
        subprocess.check_call([*add, *LOCKED, "-r", lock])
    if locks:
        return
    subprocess.check_call([*add, *LOCKED, "-r", BUILD_LOCK])
    subprocess.check_call([*add, *LOCKED, *FROM_SOURCE, "-r", TEST_LOCK])
    subprocess.check_call([*add, "--no-deps", "--no-build-isolation", "--editable", "."])
    if subprocess.call([*pip, "check"]) != 0:
        raise OSError("the locks do not have what pyproject.toml asks for: `make lock`")


def has_pip(python: Path) -> bool:
    """Return whether the environment can install."""
    command = [str(python), "-c", "import pip"]
    return python.exists() and subprocess.call(command, stderr=subprocess.DEVNULL) == 0


def wait_for(lock: IO) -> None:  # type: ignore[type-arg]  # same
    """Hold `lock` until it is closed; where there is no flock, a lone `make` needs none."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(lock, fcntl.LOCK_EX)


if __name__ == "__main__":
    if sys.version_info < PYTHON_MIN:
        sys.exit("keylane needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")
    try:
        sys.exit(main(sys.argv[1:]))
    except (subprocess.CalledProcessError, OSError) as error:
        # Debian and Ubuntu ship venv without ensurepip unless python3-venv is installed.
        sys.exit(f"set-up failed: {error}\n(on Debian and Ubuntu: apt-get install python3-venv)")
