"""The parts that keylane is made of: names, versions, sums and licences, from the locks.

In:    requirements/lock-*.txt, requirements/licences.toml, the locks of the jars.
Out:   pins and parts; a judgement of each licence.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from license_expression import ExpressionError, get_spdx_licensing
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from keylane.embedded.jar_lock import FILE_NAME, LockedJar, parse_lock

ROOT: Final = Path(__file__).resolve().parents[1]
PARTS_FOLDER: Final = ROOT / "requirements"
JAR_FOLDERS: Final = ("keylane/embedded", "pipeline")
"""Folders of the locks whose jars keylane's own commands fetch."""

ALLOWED: Final = frozenset(
    {
        "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause",
        "CC0-1.0", "MIT", "MIT-0", "PSF-2.0", "Zlib",
    }
)  # fmt: skip
"""SPDX names of licences that ask for no more than their text and notices to be kept."""
EXCEPTIONS: Final = {"crc32c": "LGPL-2.1-or-later"}
"""Parts under other licences; NOTICE says what follows from each."""

_HASH: Final = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


class LockInvalid(Exception):
    """A lock of Python packages has an entry that pip would not check; the text has the entry."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One entry of a lock of Python packages."""

    name: str
    """The name in small letters with hyphens, in which PyPI compares names."""
    version: str
    marker: Marker | None
    """Condition of its installation; None: everywhere."""
    hashes: tuple[str, ...]
    """`sha256:...` of each file that may be installed."""


def parse_pins(text: str) -> tuple[Pin, ...]:
    """The pins of a lock: exact, hashed, without options and addresses.

    Raises:
        LockInvalid: an entry is another thing.
    """
    entries = text.replace("\\\n", " ").splitlines()
    return tuple(
        _parse_pin(entry) for entry in entries if entry.strip() and not entry.startswith("#")
    )


def _parse_pin(entry: str) -> Pin:
    words, *rest = entry.split("--hash=", 1)
    hashes = tuple(_HASH.findall(entry))
    left_over = _HASH.sub("", "--hash=" + rest[0] if rest else "").strip()
    if not hashes or left_over or words.startswith("-"):
        raise LockInvalid(f"not a pin with hashes: {entry[:100]}")
    requirement = Requirement(words.strip())
    specifiers = list(requirement.specifier)
    if requirement.url or len(specifiers) != 1 or specifiers[0].operator != "==":
        raise LockInvalid(f"not one exact version: {entry[:100]}")
    name = canonicalize_name(requirement.name)
    return Pin(name, specifiers[0].version, requirement.marker, hashes)


def read_pins(name: str) -> tuple[Pin, ...]:
    """The pins of requirements/lock-`name`.txt. Raises: LockInvalid."""
    return parse_pins((PARTS_FOLDER / f"lock-{name}.txt").read_text(encoding="utf-8"))


def read_jars() -> tuple[LockedJar, ...]:
    """Return each jar that keylane's commands fetch, once."""
    jars = {
        jar.coordinates: jar
        for folder in JAR_FOLDERS
        for jar in parse_lock((ROOT / folder / FILE_NAME).read_text(encoding="utf-8"))
    }
    return tuple(jars[coordinates] for coordinates in sorted(jars))


def read_licences(kind: str) -> dict[str, str]:
    """SPDX expressions by name; `kind` is "python" or "jars"."""
    text = (PARTS_FOLDER / "licences.toml").read_text(encoding="utf-8")
    table: dict[str, str] = tomllib.loads(text)[kind]
    return table


def licence_of_jar(jar: LockedJar, licences: dict[str, str]) -> str:
    """The licence of a jar: most are Apache-2.0."""
    return licences.get(jar.coordinates.rpartition(":")[0], "Apache-2.0")


def is_allowed(name: str, expression: str) -> bool:
    """Return whether a part may be distributed under `expression`; one side of an OR is enough."""
    if EXCEPTIONS.get(name) == expression:
        return True
    licensing = get_spdx_licensing()
    try:
        parsed = licensing.parse(expression, validate=True)
    except ExpressionError:
        return False
    if parsed is None:  # an empty text
        return False
    true, false = licensing.TRUE, licensing.FALSE
    judged = {
        symbol: true if str(symbol) in ALLOWED else false
        for symbol in licensing.license_symbols(parsed, decompose=False)
    }
    return bool(parsed.subs(judged, simplify=True) == true)
