"""Names in a client's certificate, as the configuration writes them.

Source: RFC 2253 (subjects, as Kafka's SSL principals and `openssl -nameopt RFC2253` have them),
       RFC 5280 4.2.1.6 (alternative names).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "givenName": "GN",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "surname": "SN",
    "userId": "UID",
}
"""Of attributes of a subject, as OpenSSL has them; any other one keeps its name."""
ALTERNATIVES: Final = frozenset({"DNS", "URI", "email"})
SPECIAL: Final = frozenset(',+"\\<>;')


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The subject (`CN=ops,O=Example`), and each of `DNS:`, `URI:` and `email:`."""
    alternatives = certificate.get("subjectAltName", ())
    names = {f"{kind}:{value}" for kind, value in alternatives if kind in ALTERNATIVES}
    # The most general part comes first in the certificate, and last in the name.
    parts = [
        "+".join(f"{SHORT.get(key, key)}={_escape(text)}" for key, text in reversed(part))
        for part in reversed(certificate.get("subject", ()))
    ]
    if parts:
        names.add(",".join(parts))
    return frozenset(names)


def _escape(text: str) -> str:
    """Else a value with a comma could pass for two parts."""
    escaped = "".join(f"\\{letter}" if letter in SPECIAL else letter for letter in text)
    if text.startswith(("#", " ")):
        escaped = f"\\{escaped}"
    if text.endswith(" ") and len(text) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped
