"""Find Helm, with which the tests of the chart render, or build it with Go.

In:    PATH, KEYLANE_HELM; Go, where there is no Helm.  Out: the path of a `helm`, or why not.

Helm is built once, from the version that stands here, into the Python environment (`make clean`
removes it). That takes two and a half minutes of CPU. No package on PyPI holds Helm itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MODULE: Final = "helm.sh/helm/v3/cmd/helm@v3.22.0"
"""The version that the chart is tested with."""
BUILD_TIMEOUT_S: Final = 900.0
VARIABLE: Final = "KEYLANE_HELM"
"""Path of a Helm to take."""


class HelmMissing(Exception):
    """Helm is missing and cannot be built; the text has the reason."""


def find_helm() -> Path:
    """Return Helm's path, building it if need be. Raises: HelmMissing."""
    built = Path(sys.prefix) / "helm" / "helm"
    for found in (os.environ.get(VARIABLE), shutil.which("helm"), built):
        if found and Path(found).exists():
            return Path(found)
    go = shutil.which("go")
    if go is None:
        raise HelmMissing("neither helm nor go is on PATH")
    built.parent.mkdir(parents=True, exist_ok=True)
    with _lock(built.parent / "lock"):
        if not built.exists():
            _build(go, built)
    return built


def _build(go: str, built: Path) -> None:
    """Build beside the place and move: a build that is cut off leaves nothing."""
    folder = built.parent / "building"
    environment = os.environ | {"GOBIN": str(folder), "GOFLAGS": "-trimpath", "GOGC": "300"}
    print(f"building {MODULE}, once", file=sys.stderr, flush=True)
    try:
        subprocess.run(
            [go, "install", "-ldflags=-s -w", MODULE],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise HelmMissing(f"go did not build it in {BUILD_TIMEOUT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or "go said nothing").splitlines()[-1]
        raise HelmMissing(f"go cannot build it: {last}") from None
    (folder / "helm").replace(built)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One builder at a time; where there is no flock, the last one wins."""
    with path.open("w") as file:
        try:
            import fcntl  # noqa: PLC0415
        except ImportError:
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Print Helm's path; say why there is none, which fails nothing."""
    try:
        print(find_helm())
    except HelmMissing as error:
        print(f"no helm, tests of the chart are skipped: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
