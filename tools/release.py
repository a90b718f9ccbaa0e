"""Check that a tree is ready to be released, or set the addresses of the project's home.

`python -m tools.release` prints each check of `make release-check`; `python -m tools.release home
HOME SOURCE` writes both addresses to every file that has them. pyproject.toml has the originals.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from keylane import __version__
from tools.parts import ROOT

FILES: Final = (
    "pyproject.toml",
    "Dockerfile",
    "helm/keylane/Chart.yaml",
    "helm/keylane/README.md",
    "helm/keylane/rules/keylane.yaml",
)
"""Files that have the addresses of the project."""
UNSET: Final = ".invalid"
"""End of a host name that never resolves (RFC 2606): the home is not known yet."""
HEADING: Final = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)
URL: Final = re.compile(r"https://[a-z0-9.-]+(/[\w.~-]+)*")


class HomeInvalid(Exception):
    """The text names the address, and what is wrong with it."""


def read_urls(root: Path = ROOT) -> dict[str, str]:
    """Return the addresses of pyproject.toml by name."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return dict(project["urls"])


def set_home(home: str, source: str, root: Path = ROOT) -> list[str]:
    """Write the addresses to all files; return those that changed. Raises: HomeInvalid."""
    for url in (home, source):
        if not URL.fullmatch(url):
            raise HomeInvalid(f"{url}: expected https://HOST/PATH without a slash at the end")
    if home == source:
        raise HomeInvalid(f"{home}: home and source need two addresses, or none can change alone")
    old = read_urls(root)
    new_of = {old["Homepage"]: home, old["Source"]: source}
    # The longer one first, as one may lie below the other; both in one pass, as a new address may
    # begin with an old one.
    either = re.compile("|".join(map(re.escape, sorted(new_of, key=len, reverse=True))))
    changed = []
    for name in FILES:
        path = root / name
        text = path.read_text(encoding="utf-8")
        new = either.sub(lambda found: new_of[found[0]], text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(name)
    return changed


def newest_headings(changelog: str) -> list[tuple[str, str, bool]]:
    """Return version, date and emptiness of each section, the newest first."""
    found = list(HEADING.finditer(changelog))
    ends = [match.start() for match in found[1:]] + [len(changelog)]
    return [
        (match[1], match[2] or "", not changelog[match.end() : end].strip())
        for match, end in zip(found, ends, strict=True)
    ]


def check_changelog(changelog: str, version: str) -> str:
    """Return what keeps the version from being released; empty: nothing."""
    sections = newest_headings(changelog)
    if sections and sections[0][0] == "Unreleased":
        if not sections[0][2]:
            return f"its changes stand under [Unreleased]; name the section [{version}] - DATE"
        sections = sections[1:]
    if not sections:
        return f"no section [{version}] - DATE"
    newest, date, is_empty = sections[0]
    if newest != version:
        return f"the newest section is {newest}, the version is {version}"
    if not date:
        return f"the section [{version}] has no date"
    return f"the section [{version}] is empty" if is_empty else ""


def check_tag(tags: str, version: str) -> str:
    """Return what is wrong with the tags of the commit (one a line); empty: nothing."""
    wanted, versions = f"v{version}", [tag for tag in tags.split() if tag.startswith("v")]
    if wanted not in versions:
        return f"this commit has no tag {wanted}"
    others = sorted(set(versions) - {wanted})
    return f"this commit has another version's tag, too: {', '.join(others)}" if others else ""


def check_home(urls: Mapping[str, str]) -> str:
    """Return which addresses are unset; empty: none."""
    unset = [name for name, url in urls.items() if url.split("/")[2].endswith(UNSET)]
    if not unset:
        return ""
    return f"{', '.join(unset)} lead nowhere; `make home HOME_URL=... SOURCE_URL=...` sets them"


def checks() -> dict[str, str]:
    """Each check by name, with what it found; an empty text is a pass."""
    chart = yaml.safe_load((ROOT / "helm/keylane/Chart.yaml").read_text(encoding="utf-8"))
    app_version = chart["appVersion"]
    return {
        "home": check_home(read_urls()),
        "changelog": check_changelog((ROOT / "CHANGELOG.md").read_text("utf-8"), __version__),
        "chart": ""
        if app_version == __version__
        else f"appVersion {app_version}, the version is {__version__}",
        "tag": check_tag(git("tag", "--points-at", "HEAD"), __version__),
        "tree": "files differ from the commit" if git("status", "--porcelain").strip() else "",
    }


def git(*args: str) -> str:
    """Return what git prints. Raises: subprocess.CalledProcessError."""
    return subprocess.run(
        ["git", *args], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def main(argv: list[str]) -> int:
    """Check, or set the home; 1 when something is wrong."""
    match argv:
        case []:
            found = checks()
            for name, text in found.items():
                print(f"{name:<10} {text or 'ok'}")
            return 1 if any(found.values()) else 0
        case ["home", home, source]:
            try:
                print("\n".join(set_home(home, source)))
            except HomeInvalid as error:
                print(error, file=sys.stderr)
                return 1
            return 0
        case _:
            print("usage: python -m tools.release [home HOME SOURCE]", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
