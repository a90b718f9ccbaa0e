"""proxy/net/security/node_security.py: what is configured, and nothing else."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from keylane.config.security import SecurityConfig
from keylane.errors import ConfigInvalid, LoginRefused
from keylane.proxy.net.security.node_security import Security
from keylane.proxy.net.security.tls import ReloadingContext
from tests.integration.certificates import Authority


def test_nothing_is_secured_by_itself() -> None:
    """As Kafka's own default, PLAINTEXT."""
    security = Security(SecurityConfig())

    assert (security.listener, security.upstream, security.login) == (None, None, None)
    assert security.aiokafka_options() == {"security_protocol": "PLAINTEXT"}
    assert not security.is_login_required
    security.poll(force=True)


@pytest.mark.parametrize("has_tls", [True, False])
@pytest.mark.parametrize("has_login", [True, False])
def test_protocols(tmp_path, has_tls, has_login, caplog) -> None:
    """Each combination by Kafka's name; a login without TLS is warned of."""
    values: dict[str, Any] = {}
    if has_tls:
        values |= {"upstream_tls": True, "upstream_ca": str(Authority(tmp_path).ca)}
    if has_login:
        (tmp_path / "password").write_text("sesame-open")
        values |= {
            "login_mechanism": "SCRAM-SHA-256",
            "login_username": "keylane",
            "login_password_file": str(tmp_path / "password"),
        }

    security = Security(SecurityConfig(**values))
    options = security.aiokafka_options()

    names = {(True, True): "SASL_SSL", (True, False): "SSL", (False, True): "SASL_PLAINTEXT"}
    assert options["security_protocol"] == names.get((has_tls, has_login), "PLAINTEXT")
    assert isinstance(options.get("ssl_context"), ssl.SSLContext) == has_tls
    assert ("sasl_plain_password" in options) == has_login == security.is_login_required
    assert ("without TLS" in caplog.text) == (has_login and not has_tls)
    assert "sesame" not in caplog.text


def test_a_certificate_for_brokers_makes_clients_log_in(tmp_path) -> None:
    """Else a broker without SASL would take each of them for keylane."""
    authority = Authority(tmp_path)
    own = str(authority.issue("own"))
    config = SecurityConfig(
        upstream_tls=True, upstream_ca=str(authority.ca), upstream_certificate=own
    )

    assert Security(config).is_login_required


def test_the_control_port_asks_for_no_certificate(tmp_path) -> None:
    """Probes have none, also where clients must show one."""
    authority = Authority(tmp_path)
    config = SecurityConfig(
        tls_certificate=str(authority.issue("served")),
        tls_client_ca=str(authority.ca),
        control_tls=True,
    )

    security = Security(config)

    assert isinstance(security.listener, ReloadingContext)
    assert isinstance(security.control, ReloadingContext)
    modes = [security.listener._current.verify_mode, security.control._current.verify_mode]
    assert modes == [ssl.CERT_REQUIRED, ssl.CERT_NONE]


def test_a_password_that_is_gone(tmp_path) -> None:
    """Opening another client fails with the key's name, and not before."""
    config = SecurityConfig(
        login_mechanism="PLAIN", login_username="k", login_password_file=str(tmp_path / "none")
    )
    security = Security(config)

    with pytest.raises(LoginRefused, match="login_password_file"):
        security.aiokafka_options()


def test_a_certificate_that_is_not_there() -> None:
    """The start ends with the key that names it."""
    with pytest.raises(ConfigInvalid, match="tls_certificate"):
        Security(SecurityConfig(tls_certificate="/nowhere/tls.pem"))
