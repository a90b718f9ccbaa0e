"""keylane/config/security.py: keys that do nothing without another are refused, and name it."""

from __future__ import annotations

import pytest

from keylane.config.node import ProxyConfig
from keylane.config.security import is_loopback
from keylane.config.sources import load_config
from keylane.errors import ConfigInvalid

KEYLANE = {"login_username": "keylane"}
CONTROL_TLS = {"control_tls": "true", "tls_certificate": "c"}
ADMINS = {"control_admins": "[CN=ops]"}
MUTUAL = {**CONTROL_TLS, **ADMINS, "control_client_ca": "a"}


def load(**values: object) -> ProxyConfig:
    return load_config(
        path=None, environment={}, flags={"bootstrap": "kafka:9092", **values}
    ).config


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"tls_key": "k"}, ["tls_key", "tls_certificate"]),
        ({"tls_client_ca": "c"}, ["tls_client_ca", "tls_certificate"]),
        ({"control_tls": "true"}, ["control_tls", "control_certificate", "tls_certificate"]),
        ({"control_certificate": "c"}, ["control_certificate", "control_tls"]),
        ({**CONTROL_TLS, "control_key": "k"}, ["control_key", "control_certificate"]),
        ({"control_client_ca": "a", **ADMINS}, ["control_client_ca", "control_tls"]),
        ({**CONTROL_TLS, "control_client_ca": "a"}, ["control_client_ca", "control_admins"]),
        (ADMINS, ["control_admins", "control_client_ca"]),
        ({"control_readers": "[CN=a]"}, ["control_readers", "control_client_ca"]),
        ({**MUTUAL, "control_readers": "[CN=ops]"}, ["control_readers", "CN=ops"]),
        ({**MUTUAL, "control_readers": "[ops]"}, ["control_readers", "ops", "DNS:"]),
        ({**MUTUAL, "control_readers": "['IP:10.0.0.1']"}, ["control_readers", "DNS:"]),
        ({"upstream_ca": "c"}, ["upstream_ca", "upstream_tls"]),
        ({"upstream_certificate": "c"}, ["upstream_certificate", "upstream_tls"]),
        ({"upstream_tls": "1", "upstream_key": "k"}, ["upstream_key", "upstream_certificate"]),
        ({"login_username": "u"}, ["login_username", "login_mechanism"]),
        ({"login_mechanism": "PLAIN"}, ["PLAIN", "login_username"]),
        ({"login_mechanism": "OAUTHBEARER"}, ["OAUTHBEARER", "login_token_file"]),
        ({"login_mechanism": "GSSAPI", **KEYLANE}, ["login_mechanism", "SCRAM-SHA-512"]),
        ({"control_read_token_file": "t"}, ["control_read_token_file", "control_token_file"]),
        ({"control": "10.0.0.1:8080"}, ["control", "10.0.0.1", "control_token_file"]),
        ({"control": "[::]:8080"}, ["control", "control_token_file", "control_client_ca"]),
        ({"control": "[::]:8080", **CONTROL_TLS}, ["control", "control_client_ca"]),
        ({"connections_max": "0"}, ["connections_max"]),
        ({"login_password": "secret-itself"}, ["login_password"]),
    ],
)
def test_what_cannot_be_meant(values, names) -> None:
    """The error names the keys, and shows no value of a key that it does not know."""
    with pytest.raises(ConfigInvalid) as caught:
        load(**values)

    assert all(name in str(caught.value) for name in names)
    assert "secret-itself" not in str(caught.value)
    assert not str(caught.value).startswith(":")


@pytest.mark.parametrize(
    "values",
    [
        {"tls_certificate": "c", "tls_key": "k", "tls_client_ca": "a", "control_tls": "true"},
        {"upstream_tls": "true", "upstream_certificate": "c"},
        {"login_mechanism": "SCRAM-SHA-256", **KEYLANE},
        {"login_mechanism": "OAUTHBEARER", "login_token_file": "t"},
        {"control": "10.0.0.1:8080", "control_token_file": "t"},
        {"control": "127.0.0.1:8080"},
        {"control": "[::1]:8080"},
        {"control": "localhost:8080"},
    ],
)
def test_what_fits_together(values) -> None:
    """Files are looked at when they are used."""
    config = load(**values)

    assert {key: str(getattr(config, key)).lower() for key in values} == {
        key: value.lower() for key, value in values.items()
    }


def test_client_certificates_guard_a_control_port() -> None:
    """A control port without a token has its own certificate; names are read as YAML, too."""
    own = {"control_tls": "true", "control_certificate": "c", "control_key": "k"}
    names = {"control_admins": "['CN=ops,O=Example', 'URI:spiffe://x/ops']"}

    config = load(control="0.0.0.0:1", **own, **names, control_client_ca="a")

    assert config.control_admins == ("CN=ops,O=Example", "URI:spiffe://x/ops")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.2", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_loopback(host, expected) -> None:
    """An address that only this machine reaches."""
    assert is_loopback(host) == expected
