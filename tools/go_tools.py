"""Find the programs that check the chart, or build them with Go: Helm, promtool, an API server.

Each is built once, from the version that stands here, into the Python environment (`make clean`
removes it). No package on PyPI holds them. Helm takes two and a half minutes of CPU, promtool
three, kube-apiserver and etcd five.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from keylane.embedded.resolve import hold_lock
from tools.parts import ROOT

BUILD_TIMEOUT_S: Final = 900.0
DOWNLOAD_TIMEOUT_S: Final = 300.0
ALTERED: Final = "checksum mismatch"
"""Of what go says about a download that its go.sum or Go's checksum database does not know."""


@dataclass(frozen=True, slots=True)
class GoTool:
    """A program that Go builds."""

    name: str
    package: str
    """Import path of the program; with its version where `module` is None."""
    module: Path | None = None
    """Folder with the go.mod that pins its version, and the sum of each part of it."""
    linked: str = ""
    """Further flags of the linker."""
    timeout_s: float = BUILD_TIMEOUT_S

    @property
    def variable(self) -> str:
        """Return the environment variable that names one to take."""
        return f"KEYLANE_{self.name.upper().replace('-', '_')}"


KUBERNETES: Final = ROOT / "tools" / "go" / "kubernetes"
"""Kubernetes is no module that `go install` takes: its go.mod replaces its own parts."""
KUBERNETES_VERSION: Final = "v1.36.3"
HELM: Final = GoTool("helm", "helm.sh/helm/v3/cmd/helm@v3.22.0")
PROMTOOL: Final = GoTool("promtool", "github.com/prometheus/prometheus/cmd/promtool@v0.316.0")
ETCD: Final = GoTool("etcd", "go.etcd.io/etcd/server/v3", KUBERNETES)
API_SERVER: Final = GoTool(
    "kube-apiserver",
    "k8s.io/kubernetes/cmd/kube-apiserver",
    KUBERNETES,
    # Without it the server reports no version, and Helm finds it too old for the chart.
    f"-X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}",
    timeout_s=3600.0,
)


class GoToolMissing(Exception):
    """The program is missing and cannot be built; the text has the reason."""


class ModuleAltered(Exception):
    """A download has another sum than the one that is known: no reason to skip a test."""


def find_tool(tool: GoTool) -> Path:
    """Return a program's path, building it if need be. Raises: GoToolMissing, ModuleAltered."""
    built = Path(sys.prefix) / "go-tools" / tool.name
    for found in (os.environ.get(tool.variable), shutil.which(tool.name), built):
        if found and Path(found).exists():
            return Path(found)
    go = shutil.which("go")
    if go is None:
        raise GoToolMissing(f"neither {tool.name} nor go is on PATH")
    built.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(built.parent / f"{tool.name}.lock"):
        if not built.exists():
            _build(go, tool, built)
    return built


def _build(go: str, tool: GoTool, built: Path) -> None:
    """Build beside the place and move: a build that is cut off leaves nothing."""
    folder = built.parent / f"building-{tool.name}"
    folder.mkdir(exist_ok=True)
    flags = [f"-ldflags=-s -w {tool.linked}".rstrip()]
    command = [go, "install", *flags, tool.package]
    if tool.module is not None:
        command = [go, "build", *flags, "-mod=readonly", "-o", str(folder / tool.name)]
        command.append(tool.package)
    environment = os.environ | {"GOBIN": str(folder), "GOFLAGS": "-trimpath", "GOGC": "300"}
    print(f"building {tool.package}, once", file=sys.stderr, flush=True)
    try:
        subprocess.run(
            command,
            cwd=tool.module,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=tool.timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise GoToolMissing(f"go did not build it in {tool.timeout_s:g} s") from None
    except subprocess.CalledProcessError as error:
        if ALTERED in error.stderr:
            raise ModuleAltered(error.stderr.strip()) from None
        last = (error.stderr.strip() or "go said nothing").splitlines()[-1]
        raise GoToolMissing(f"go cannot build it: {last}") from None
    (folder / tool.name).replace(built)


def download_module(module: str, digest: str) -> Path:
    """Return the folder of a module's files, such as its CRDs; `digest` is go's `h1:` sum.

    Raises: GoToolMissing, ModuleAltered.
    """
    go = shutil.which("go")
    if go is None:
        raise GoToolMissing("go is not on PATH")
    command = [go, "mod", "download", "-json", module]
    try:
        done = subprocess.run(
            command,
            cwd=KUBERNETES,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"go did not fetch {module} in {DOWNLOAD_TIMEOUT_S:g} s"
        raise GoToolMissing(reason) from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise GoToolMissing(f"go cannot fetch {module}: {done.stderr.strip()}") from None
    if ALTERED in found.get("Error", ""):
        raise ModuleAltered(found["Error"])
    if "Error" in found:
        raise GoToolMissing(f"go cannot fetch {module}: {found['Error']}")
    if found["Sum"] != digest:
        raise ModuleAltered(f"{module} has the sum {found['Sum']}, expected {digest}")
    return Path(found["Dir"])


def main(argv: list[str]) -> int:
    """Print the path of each named tool (helm); say why there is none, which fails nothing.

    1 where a download has been altered.
    """
    known = {tool.name: tool for tool in (HELM, PROMTOOL, ETCD, API_SERVER)}
    for name in argv or [HELM.name]:
        try:
            print(find_tool(known[name]))
        except GoToolMissing as error:
            reason = f"no {name}, tests that need it are skipped: {error}"
            print(reason, file=sys.stderr)  # stdout has paths only, for scripts
        except ModuleAltered as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
