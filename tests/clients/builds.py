"""Build members of other languages, once per content of their sources, in keylane's cache folder.

What a machine lacks for one (`ClientMissing`) leaves its tests out; a source that does not compile,
or a package with another sum than its lock has, fails them.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Final

from keylane.embedded.resolve import cache_folder, hold_lock

HERE: Final = Path(__file__).parent
GO: Final = HERE / "go"
JS: Final = HERE / "js"
TIMEOUT_S: Final = 900.0
NODE_MIN: Final = 20
CONFLUENT: Final = Path("node_modules/@confluentinc/kafka-javascript")
LIBRDKAFKA_OPTIONS: Final = (
    "--disable-curl",
    "--disable-gssapi",
    "--disable-lz4-ext",
    "--disable-sasl",
    "--disable-ssl",
    "--disable-zstd",
)
"""Lanes come uncompressed, and tests here without TLS: no library but libc and libz is needed."""
CLIENTS: Final = ("franz-go", "sarama", "kafka-go", "kafkajs")
LONG: Final = ("confluent-js",)
"""Of the tests with `--long`."""
OURS: Final = (
    "checksum mismatch", "errors parsing", "code EINTEGRITY", "code EUSAGE", "code EJSONPARSE",
)  # fmt: skip
"""Of what go and npm say where locks or packages are wrong, and not the machine."""
GO_OLD: Final = "invalid go version"
"""Of what a go before 1.21 says of each newer go.mod: that it cannot be parsed."""
Step = Callable[[Path], None]


class ClientMissing(Exception):
    """The client cannot be had on this machine; the text has the reason."""


def _remembered(build: Callable[[], Path]) -> Callable[[], Path]:
    """Build once a process. What is missing stays missing: a registry is given up slowly."""

    @cache
    def outcome() -> Path | ClientMissing:
        try:
            return build()
        except ClientMissing as reason:
            return reason

    @wraps(build)
    def find() -> Path:
        found = outcome()
        if isinstance(found, ClientMissing):
            raise found
        return found

    return find


def find_member(client: str) -> tuple[str, ...]:
    """Return the command of a client's member. Raises: ClientMissing."""
    if client in {"kafkajs", "confluent-js"}:
        folder = _build_confluent() if client == "confluent-js" else _install_js()
        script = folder / f"{client.removesuffix('-js')}.js"
        # Beside the packages, where node looks for them.
        with hold_lock(folder / "scripts.lock"):
            for each in (JS / script.name, JS / "member.js"):
                target = folder / each.name
                if not (target.exists() and filecmp.cmp(each, target, shallow=False)):
                    shutil.copy2(each, target)
        return (_tool("node"), str(script))
    return (str(_build_go() / client),)


@_remembered
def _build_go() -> Path:
    """All Go members at once: they share packages."""

    def build(folder: Path) -> None:
        go = _tool("go")
        _fetch((go, "mod", "download"), GO)
        names = [f"./{each.parent.name}" for each in sorted(GO.glob("*/main.go"))]
        # Without git, which refuses a checkout of another user.
        flags = ("-trimpath", "-buildvcs=false", "-ldflags=-s -w")
        _run((go, "build", *flags, "-o", f"{folder}/", *names), GO)

    return _once("go", sorted(GO.rglob("*.*")), build)


@_remembered
def _install_js() -> Path:
    """KafkaJS beside the members' sources."""
    return _once("js", _packages(), _install)


@_remembered
def _build_confluent() -> Path:
    """Confluent's client, with the librdkafka whose sources its package holds: two minutes."""

    def build(folder: Path) -> None:
        for tool in ("make", "g++", "python3"):
            _tool(tool)
        node = Path(_tool("node")).resolve().parent.parent
        if not (node / "include/node/node.h").exists():
            raise ClientMissing(f"Node's headers are not in {node}/include/node")
        gyp = node / "lib/node_modules/npm/node_modules/node-gyp/bin/node-gyp.js"
        if not gyp.exists():
            raise ClientMissing(f"node-gyp is not at {gyp}")
        _install(folder)
        package, library = folder / CONFLUENT, folder / "librdkafka"
        source = package / "deps/librdkafka"
        _run(("./configure", *LIBRDKAFKA_OPTIONS, f"--prefix={library}"), source)
        _run(("make", "-j2", "libs"), source)
        _run(("make", "install-subdirs"), source)
        environment = {
            "BUILD_LIBRDKAFKA": "0",
            "CXXFLAGS": f"-I{library}/include/librdkafka",
            "LDFLAGS": f"-L{library}/lib -Wl,-rpath,{library}/lib",
        }
        command = (_tool("node"), str(gyp), "rebuild", f"--nodedir={node}", "-j", "2")
        _run(command, package, environment)

    return _once("confluent-js", _packages(), build)


def _packages() -> list[Path]:
    return [JS / each for each in (".npmrc", "package.json", "package-lock.json")]


def _install(folder: Path) -> None:
    node, npm = _tool("node"), _tool("npm")
    version = _run((node, "--version"), folder).strip().removeprefix("v")
    if int(version.split(".", 1)[0]) < NODE_MIN:
        raise ClientMissing(f"node is {version}, and {NODE_MIN} is needed")
    for each in [*_packages(), *JS.glob("*.js")]:
        shutil.copy2(each, folder)
    # Without scripts: Confluent's would fetch a library that was built elsewhere.
    # npm's own bounds add up to a quarter of an hour for a registry that does not answer.
    bounds = ("--fetch-timeout=120000", "--fetch-retries=1")
    _fetch((npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", *bounds), folder)


def _once(name: str, sources: Sequence[Path], step: Step) -> Path:
    """Return the folder that a step has filled, now or for the same sources before."""
    sums = hashlib.sha256()
    for each in [*sources, Path(__file__)]:
        sums.update(each.name.encode() + b"\0" + each.read_bytes() + b"\0")
    parent = cache_folder() / "clients"
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"{name}-{sums.hexdigest()[:16]}"
    with hold_lock(folder.with_suffix(".lock")):
        done = folder / "built"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a build that was cut off
            folder.mkdir()
            step(folder)
            done.touch()
    return folder


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ClientMissing(f"{name} is not on PATH")
    return found


def _fetch(command: Sequence[str], folder: Path) -> None:
    """Run what asks a registry. Raises: ClientMissing, for a toolchain that is too old as well."""
    name = f"{Path(command[0]).name} {command[1]}"
    try:
        _run(command, folder)
    except subprocess.TimeoutExpired:
        raise ClientMissing(f"{name}: not done in {TIMEOUT_S:g} s") from None
    except subprocess.CalledProcessError as error:
        if GO_OLD not in error.stderr and any(each in error.stderr for each in OURS):
            raise
        raise ClientMissing(f"{name}: {_reason(error.stderr)}") from None


def _reason(stderr: str) -> str:
    """Return the line with the reason: go ends with it, npm with the place of its log."""
    lines = stderr.strip().splitlines() or ["it gives no reason"]
    for mark in ("reason: ", "error code "):
        for line in lines:
            if mark in line:
                return line
    return lines[-1]


def _run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | (environment or {}),
        check=True,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Build before the tests do; say what the machine lacks, which fails nothing."""
    for client in CLIENTS + (LONG if "--long" in arguments else ()):
        try:
            print(f"{client}: {find_member(client)[-1]}", flush=True)
        except ClientMissing as reason:
            print(f"{client} is left out: {reason}", flush=True)
        except subprocess.CalledProcessError as error:
            print(f"{client} cannot be built:\n{error.stderr}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
