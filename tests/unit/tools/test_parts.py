"""The locks, NOTICE and the lists of parts: hashed, within pyproject.toml, licensed, up to date."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any, Final

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import get_spdx_licensing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from keylane.embedded.resolve import KAFKA_VERSION, kafka_lock
from keylane.pipeline.needs import WANTED, spark_lock
from tools import image_sbom, parts, sbom

LOCKS: Final = ("build", "image", "test", "tools")
PROJECT: Final = tomllib.loads((parts.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS: Final = (
    {"sys_platform": "linux", "platform_machine": "x86_64", "platform_system": "Linux"},
    {"sys_platform": "linux", "platform_machine": "aarch64", "platform_system": "Linux"},
    {"sys_platform": "darwin", "platform_machine": "arm64", "platform_system": "Darwin"},
)
ENVIRONMENTS: Final = [
    platform
    | {
        "python_version": version,
        "python_full_version": f"{version}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    for version in PYTHONS
    for platform in PLATFORMS
]
INSTALLED_TOGETHER: Final = {"image": (), "test": ("test", "bench")}


def direct(extras: tuple[str, ...]) -> list[Requirement]:
    """What pyproject.toml asks for, with `extras` and the extras that these name."""
    lines = list(PROJECT["project"]["dependencies"])
    waiting, seen = list(extras), set()
    while waiting:
        extra = waiting.pop()
        if extra not in seen:
            seen.add(extra)
            lines += PROJECT["project"]["optional-dependencies"][extra]
            waiting += [
                name
                for line in PROJECT["project"]["optional-dependencies"][extra]
                if Requirement(line).name == "keylane"
                for name in Requirement(line).extras
            ]
    return [item for item in map(Requirement, lines) if item.name != "keylane"]


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_is_exact_and_hashed(name: str) -> None:
    """No option, no address, no range: pip installs these files or none."""
    text = (parts.PARTS_FOLDER / f"lock-{name}.txt").read_text(encoding="utf-8")

    pins = parts.parse_pins(text)

    assert pins
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash=sha256:)", text, re.MULTILINE)


@pytest.mark.parametrize(
    "entry",
    [
        "idna==3.4",
        "idna>=3.4 --hash=sha256:" + "0" * 64,
        "idna --hash=sha256:" + "0" * 64,
        "idna==3.4 --hash=md5:" + "0" * 32,
        "idna==3.4 --hash=sha256:" + "0" * 64 + " --hash=sha256:abc",
        "--index-url https://example.test/simple",
        "-e .",
        "idna @ https://example.test/idna.whl --hash=sha256:" + "0" * 64,
    ],
)
def test_other_entries_are_refused(entry: str) -> None:
    """A range, a missing or weak sum, an address, an option."""
    with pytest.raises(parts.LockInvalid):
        parts.parse_pins(entry + "\n")


@pytest.mark.parametrize("name", INSTALLED_TOGETHER)
def test_locks_fit_pyproject(name: str) -> None:
    """Each requirement has one version in its range, on each Python and platform."""
    pins = parts.read_pins(name)
    for environment in ENVIRONMENTS:
        versions: dict[str, list[str]] = {}
        for pin in pins:
            if pin.marker is None or pin.marker.evaluate(environment):
                versions.setdefault(pin.name, []).append(pin.version)
        assert all(len(found) == 1 for found in versions.values())

        for wanted in direct(INSTALLED_TOGETHER[name]):
            if wanted.marker is None or wanted.marker.evaluate(environment):
                found = versions.get(canonicalize_name(wanted.name), ["none"])
                assert wanted.specifier.contains(found[0]), f"{wanted} has {found}: `make lock`"


def test_the_image_has_what_was_tested() -> None:
    """Each version of the image's lock is in the tests' lock, with the same files."""
    tested = set(parts.read_pins("test"))

    assert set(parts.read_pins("image")) <= tested


def test_what_builds_is_what_pyproject_names() -> None:
    """build.in repeats [build-system]; the lock has a version in that range."""
    lines = (parts.PARTS_FOLDER / "build.in").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if not line.startswith("#")]

    assert wanted == [Requirement(line) for line in PROJECT["build-system"]["requires"]]
    pins = {pin.name: pin.version for pin in parts.read_pins("build")}
    assert all(item.specifier.contains(pins[item.name]) for item in wanted)


def test_the_generated_files_are_up_to_date() -> None:
    """NOTICE and both lists are what `make sbom` writes."""
    for path, text in sbom.make_texts().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make sbom`"


def test_notice_names_each_package_with_its_licence() -> None:
    """A line per pin of the image; what is under the LGPL is said in words."""
    lines = (parts.ROOT / "NOTICE").read_text(encoding="utf-8").splitlines()
    licences = parts.read_licences("python")
    for pin in parts.read_pins("image"):
        wanted = [pin.name, pin.version, *licences[pin.name].split()]
        assert any(line.split()[: len(wanted)] == wanted for line in lines), pin.name

    assert licences.keys() == {pin.name for pin in parts.read_pins("image")}
    assert licences["crc32c"] == "LGPL-2.1-or-later"
    assert any(line.startswith("crc32c is under the GNU Lesser General") for line in lines)


def test_licences_are_allowed() -> None:
    """One that asks for more than its text to be kept needs an exception, and words in NOTICE."""
    python, jars = parts.read_licences("python"), parts.read_licences("jars")
    locked_jars = {jar.coordinates.rpartition(":")[0] for jar in parts.read_jars()}

    refused = [
        (name, licence)
        for name, licence in (python | jars).items()
        if not parts.is_allowed(name, licence)
    ]

    assert refused == []
    assert jars.keys() <= locked_jars


@pytest.mark.parametrize(
    ("licence", "is_allowed"),
    {
        "MIT": True,
        "GPL-3.0-only": False,
        "GPL-3.0-only OR MIT": True,
        "GPL-3.0-only AND MIT": False,
        "LGPL-2.1-or-later": False,
        "Apache-2.0 WITH LLVM-exception": True,
        "GPL-3.0-only WITH LLVM-exception": False,
        "No-Such-Licence": False,
        "": False,
    }.items(),
)
def test_a_licence_is_judged(licence: str, is_allowed: bool) -> None:
    """Of an OR one side is enough, of an AND both are needed."""
    assert parts.is_allowed("something", licence) is is_allowed


def test_licences_are_what_packages_say() -> None:
    """Where a package states an SPDX expression, it is the one that was read."""
    licensing = get_spdx_licensing()
    compared = 0
    for name, licence in parts.read_licences("python").items():
        try:
            said = metadata(name)["License-Expression"]
        except PackageNotFoundError:
            continue  # not on this platform
        if said is not None:
            compared += 1
            assert licensing.is_equivalent(said, licence), f"{name} says {said}"

    assert compared


@pytest.mark.parametrize("name", ["image", "jars"])
def test_lists_are_cyclonedx(name: str) -> None:
    """They are valid, and list what the locks do."""
    text = (parts.PARTS_FOLDER / f"sbom-{name}.cdx.json").read_text(encoding="utf-8")

    faults = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)

    assert faults is None
    components = json.loads(text)["components"]
    found = {
        (item["purl"], "".join(each["content"] for each in item.get("hashes", ())))
        for item in components
    }
    if name == "image":
        wanted = {(f"pkg:pypi/{pin.name}@{pin.version}", "") for pin in parts.read_pins("image")}
    else:
        wanted = {
            ("pkg:maven/{}/{}@{}".format(*jar.coordinates.split(":")), jar.sha256)
            for jar in parts.read_jars()
        }
    assert found == wanted
    assert all(item["licenses"] for item in components)


def test_the_jars_are_of_the_named_versions() -> None:
    """Kafka's lock has the version that `keylane kafka` says; Spark's the four that it needs."""
    kafka = {jar.coordinates for jar in kafka_lock()}

    assert f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}" in kafka
    assert {jar.coordinates.rpartition(":")[0] for jar in spark_lock()} == WANTED


def test_an_image_lists_what_it_has(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not installed is left out; what is installed and not listed ends the build."""
    source, target = tmp_path / "all.json", tmp_path / "image.json"
    document = json.loads((parts.PARTS_FOLDER / "sbom-image.cdx.json").read_text(encoding="utf-8"))
    gone = document["components"][0] | {"version": "0.0.1", "bom-ref": "pkg:pypi/x@0.0.1"}
    source.write_text(json.dumps(document | {"components": [*document["components"], gone]}))

    code = image_sbom.main([str(source), str(target)])
    whole = image_sbom.main([str(source), str(target), "whole"])

    made = json.loads(target.read_text(encoding="utf-8"))
    references = {item["bom-ref"] for item in made["components"]}
    assert (code, whole) == (0, 1)
    assert "pytest" in capsys.readouterr().err, "the tests' own packages are in no list"
    assert "pkg:pypi/x@0.0.1" not in references
    assert {f"pkg:pypi/aiohttp@{metadata('aiohttp')['Version']}"} <= references
    root = made["metadata"]["component"]["bom-ref"]
    depends = {item["ref"]: item.get("dependsOn", []) for item in made["dependencies"]}
    assert set(depends) == references | {root}
    assert set(depends[root]) == references
