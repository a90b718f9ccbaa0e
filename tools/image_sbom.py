"""The list of an image's parts: those of the lock that are installed in its environment.

In:    argv: requirements/sbom-image.cdx.json, where to write, `whole` where all that is installed
       has to be in the list.  Out: the list without what other Pythons and systems have instead.
Standard library only: nothing is installed for it.
"""

import json
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

OWN = frozenset({"keylane", "pip", "setuptools"})
"""keylane itself is the list's subject; the others are taken out at the end."""


def main(argv: list[str]) -> int:
    """Write the list; 1 and a line that names what is in no list, or is not installed."""
    source, target, *options = argv
    document = json.loads(Path(source).read_text(encoding="utf-8"))
    installed = {(canonical(item.name), item.version) for item in distributions()}
    listed = {(item["name"], item["version"]) for item in document["components"]}
    strange = sorted(item for item in installed - listed if item[0] not in OWN)
    if strange and "whole" in options:
        print(f"installed and in no list of parts: {strange}", file=sys.stderr)
        return 1
    Path(target).write_text(json.dumps(keep(document, installed), indent=1, sort_keys=True) + "\n")
    return 0


def keep(document: dict[str, Any], installed: set[tuple[str, str]]) -> dict[str, Any]:
    """The list with the installed components only."""
    kept = [item for item in document["components"] if (item["name"], item["version"]) in installed]
    references = {item["bom-ref"] for item in kept}
    root = document["metadata"]["component"]["bom-ref"]
    depends = {"ref": root, "dependsOn": sorted(references)}
    leaves = [{"ref": reference} for reference in sorted(references)]
    return document | {"components": kept, "dependencies": [*leaves, depends]}


def canonical(name: str) -> str:
    """Return a name in the form in which PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
