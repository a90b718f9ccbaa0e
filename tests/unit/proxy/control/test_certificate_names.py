"""proxy/control/auth.py: names as OpenSSL and Kafka write them."""

from __future__ import annotations

import pytest

from keylane.proxy.control.auth import names_of

ORGANISED = (
    (("countryName", "DE"),),
    (("organizationName", "Example, Inc"),),
    (("commonName", "ops"),),
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ((), None),
        (((("commonName", "ops"),),), "CN=ops"),
        (ORGANISED, r"CN=ops,O=Example\, Inc,C=DE"),
        (((("commonName", "a"), ("userId", "7")),), "UID=7+CN=a"),
        (((("emailAddress", "a@b"),),), "emailAddress=a@b"),
        (((("commonName", ' a"+<>;\\ '),),), r"CN=\ a\"\+\<\>\;\\\ "),
        (((("commonName", "#1"),),), r"CN=\#1"),
        (((("commonName", " "),),), r"CN=\ "),
        (((("commonName", "ä=b"),),), "CN=ä=b"),
    ],
)
def test_subjects(subject, name) -> None:
    """The most special part first; what would end a part is escaped."""
    assert names_of({"subject": subject}) == (frozenset() if name is None else {name})


def test_alternative_names() -> None:
    """Names, URIs and mail addresses; no network addresses, which identify no caller."""
    alternatives = (
        ("DNS", "ops.example.com"),
        ("URI", "spiffe://example/ops"),
        ("email", "ops@example.com"),
        ("IP Address", "10.0.0.1"),
        ("DirName", ((("commonName", "x"),),)),
    )

    assert names_of({"subject": (), "subjectAltName": alternatives}) == {
        "DNS:ops.example.com",
        "URI:spiffe://example/ops",
        "email:ops@example.com",
    }
