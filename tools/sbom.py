"""Write the parts of keylane: NOTICE for people, two CycloneDX lists for machines.

In:    the locks and requirements/licences.toml, by `parts`; the text of requirements/NOTICE.in.
Out:   NOTICE, requirements/sbom-image.cdx.json (Python packages), requirements/sbom-jars.cdx.json.
Source: CycloneDX 1.6 (ECMA-424), by its own Python library; package URLs (ECMA-427); SPDX names.

The same locks always give the same bytes: there is no time and no chance in them.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from keylane import __version__
from tools.parts import (
    PARTS_FOLDER,
    ROOT,
    LockInvalid,
    licence_of_jar,
    read_jars,
    read_licences,
    read_pins,
)

MARKER_PROPERTY: Final = "keylane:marker"
"""Property with the marker of the lock; a package without it is installed everywhere."""
NAMESPACE: Final = uuid.UUID("6a1f0b52-6d0c-5a3b-9a57-3a7d1f2f6c11")


def main() -> int:
    """Write all three, and print their names."""
    try:
        for path, text in make_texts().items():
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
    except (LockInvalid, KeyError) as error:
        print(f"nothing more was written: {error}", file=sys.stderr)
        return 1
    return 0


def make_texts() -> dict[Path, str]:
    """Each file with its text. Raises: LockInvalid, KeyError (a package without a licence)."""
    return {
        ROOT / "NOTICE": make_notice(),
        PARTS_FOLDER / "sbom-image.cdx.json": make_sbom(python_components()),
        PARTS_FOLDER / "sbom-jars.cdx.json": make_sbom(jar_components()),
    }


def make_notice() -> str:
    """The text of NOTICE.in with a line per package: name, version, licence."""
    licences = read_licences("python")
    rows = [
        (pin.name, pin.version, licences[pin.name] + (f"  ({pin.marker})" if pin.marker else ""))
        for pin in read_pins("image")
    ]
    lines = [f"{name:<20} {version:<15} {licence}" for name, version, licence in rows]
    text = (PARTS_FOLDER / "NOTICE.in").read_text(encoding="utf-8")
    return text.replace("@PARTS@", "\n".join(lines))


def python_components() -> list[Component]:
    """The packages of an image. Their files' sums are in the lock, which an image holds as well."""
    licences = read_licences("python")
    return [
        _component(
            pin.name,
            pin.version,
            PackageURL("pypi", name=pin.name, version=pin.version),
            licences[pin.name],
            properties=[Property(name=MARKER_PROPERTY, value=str(pin.marker))]
            if pin.marker
            else (),
        )
        for pin in read_pins("image")
    ]


def jar_components() -> list[Component]:
    """The jars that keylane's commands fetch, with their sums."""
    licences = read_licences("jars")
    components = []
    for jar in read_jars():
        group, artifact, version = jar.coordinates.split(":")
        components.append(
            _component(
                artifact,
                version,
                PackageURL("maven", namespace=group, name=artifact, version=version),
                licence_of_jar(jar, licences),
                group=group,
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=jar.sha256)],
            )
        )
    return components


def _component(
    name: str,
    version: str,
    purl: PackageURL,
    licence: str,
    *,
    group: str | None = None,
    hashes: Iterable[HashType] = (),
    properties: Iterable[Property] = (),
) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        group=group,
        bom_ref=purl.to_string(),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(licence)],
        hashes=hashes,
        properties=properties,
    )


def make_sbom(components: Iterable[Component]) -> str:
    """The list as JSON, in the order of names."""
    purl = PackageURL("pypi", name="keylane", version=__version__)
    bom = Bom(components=components)
    bom.metadata.component = Component(
        type=ComponentType.APPLICATION,
        name="keylane",
        version=__version__,
        bom_ref=purl.to_string(),
        purl=purl,
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    bom.register_dependency(bom.metadata.component, bom.components)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"], document["serialNumber"]
    serial = uuid.uuid5(NAMESPACE, json.dumps(document, sort_keys=True))
    document["serialNumber"] = f"urn:uuid:{serial}"
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
