"""Keys that secure a node's connections: TLS, keylane's own login, bounds.

Source: names of Kafka's own broker configs where one exists; docs/security.md.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

PASSWORD_VARIABLE: Final = "KEYLANE_LOGIN_PASSWORD"  # noqa: S105 - the variable's name
"""Variable of keylane's own password when no file has it; no key, so that no flag can take it."""

LEGAL_NAME: Final = re.compile(r"(DNS|URI|email):\S+|[A-Za-z0-9][A-Za-z0-9.]*=.+", re.DOTALL)
"""A name in a certificate as `control_admins` writes it: an alternative name, or the subject."""


class SecurityConfig(BaseModel):
    """Keys for rights, logins and encryption."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tls_certificate: str | None = Field(
        default=None,
        description="PEM file: the certificate of the listeners, with its chain. Turns TLS on for "
        "clients. Read again when it changes, and on SIGHUP.",
    )
    tls_key: str | None = Field(
        default=None,
        description="PEM file with the key of `tls_certificate`; left out, it is in the same file.",
    )
    tls_client_ca: str | None = Field(
        default=None,
        description="PEM file: only clients with a certificate of these authorities get in "
        "(Kafka's `ssl.client.auth=required`). The brokers learn a client's identity by SASL only.",
    )
    upstream_tls: bool = Field(
        default=False, description="TLS to the brokers (`SSL`, `SASL_SSL` listeners)."
    )
    upstream_ca: str | None = Field(
        default=None,
        description="PEM file: authorities of the brokers' certificates; left out, the system's.",
    )
    upstream_certificate: str | None = Field(
        default=None,
        description="PEM file: keylane's own certificate, for brokers that ask for one (mTLS). "
        "Clients must then log in by SASL before keylane passes any other request of theirs.",
    )
    upstream_key: str | None = Field(
        default=None,
        description="PEM file with the key of `upstream_certificate`; left out, it is in the same "
        "file.",
    )
    upstream_verify_hostname: bool = Field(
        default=True,
        description="A broker's certificate must name the host that keylane connects to (Kafka's "
        "`ssl.endpoint.identification.algorithm=https`); false turns the check off.",
    )
    login_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = (
        Field(
            default=None,
            description="SASL mechanism of keylane's own connections. Clients may use another one.",
        )
    )
    login_username: str | None = Field(
        default=None, description="keylane's own user name, for PLAIN and SCRAM."
    )
    login_password_file: str | None = Field(
        default=None,
        description="File with keylane's own password, read at every login; left out, the "
        f"variable `{PASSWORD_VARIABLE}` holds it.",
    )
    login_token_file: str | None = Field(
        default=None,
        description="File with keylane's own OAUTHBEARER token, read at every login; the program "
        "that renews the token writes it there.",
    )
    control_token_file: str | None = Field(
        default=None,
        description="File with the bearer token that may do everything on the control port. "
        "Without it, and without `control_client_ca`, the control port is bound to a loopback "
        "address only.",
    )
    control_read_token_file: str | None = Field(
        default=None,
        description="File with the bearer token that may read on the control port and change "
        "nothing, for Prometheus for example.",
    )
    control_tls: bool = Field(
        default=False,
        description="TLS on the control port, with `control_certificate`, or if that is left out, "
        "with `tls_certificate`.",
    )
    control_certificate: str | None = Field(
        default=None,
        description="PEM file: the control port's own certificate, with its chain. Read again when "
        "it changes, and on SIGHUP.",
    )
    control_key: str | None = Field(
        default=None,
        description="PEM file with the key of `control_certificate`; left out, it is in the same "
        "file.",
    )
    control_client_ca: str | None = Field(
        default=None,
        description="PEM file: authorities of client certificates on the control port. A client "
        "with such a certificate has the role that `control_admins` or `control_readers` gives its "
        "name. A client without one needs a token, except for probes.",
    )
    control_admins: tuple[str, ...] = Field(
        default=(),
        description="Names in client certificates that may do everything on the control port: the "
        "subject as Kafka writes it (`CN=ops,O=Example`), or an alternative name (`DNS:`, `URI:` "
        "or `email:` before it).",
    )
    control_readers: tuple[str, ...] = Field(
        default=(),
        description="Names in client certificates, in the same form, that may read on the control "
        "port and change nothing.",
    )
    node_secret_file: str | None = Field(
        default=None,
        description="File with the secrets by which nodes recognize each other, the same at all "
        "nodes. Each line is a secret of at least 32 characters (`openssl rand -hex 32`): the "
        "first signs, all verify. Read at each use, so a new one needs no restart. Needed with "
        "`node` and `workers` if `listen`, or the address that clients get, is no loopback "
        "address.",
    )
    control_connections_max: int = Field(
        default=256,
        ge=8,
        description="Connections of the control port. At the bound a new one replaces one that has "
        "not sent a whole request, so that probes get in; if there is none, the new one is closed.",
    )
    control_connections_per_address_max: int = Field(
        default=64,
        ge=4,
        description="The same bound for one address. Prometheus, the kubelet and a browser may "
        "share an address.",
    )
    connections_max: int = Field(
        default=10_000,
        ge=1,
        description="Client connections of this process, Kafka's `max.connections`. At the bound a "
        "new one replaces a silent one that has not logged in; if there is none, the new one is "
        "closed. Each costs about 0.1 MB.",
    )
    connections_per_address_max: int = Field(
        default=1_000,
        ge=1,
        description="Client connections from one address, Kafka's `max.connections.per.ip`. Raise "
        "it if clients come through a load balancer that hides their addresses.",
    )
    connections_before_login_max: int = Field(
        default=1_000,
        ge=1,
        description="Client connections that have not logged in yet (if there is no login: without "
        "an answered request). At the bound, and at `connections_max` and "
        "`connections_per_address_max`, the one that has been silent longest is closed.",
    )
    login_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Time in which a client connection has to log in (if there is no login: to "
        "have its first request answered).",
    )
    connections_per_principal_max: int = Field(
        default=10_000,
        ge=1,
        description="Client connections that one principal has logged in. Further ones are closed "
        "after the broker has accepted the login.",
    )
    groups_per_principal_max: int = Field(
        default=10_000,
        ge=1,
        description="Groups in which one principal has begun to commit lanes since the start. "
        "Commits in further groups are refused with POLICY_VIOLATION.",
    )
    buffered_bytes_per_principal_max: int = Field(
        default=1024**3,
        ge=1024**2,
        description="Bytes of requests and answers in buffers of one principal's connections. "
        "Above the bound the connections that hold most are closed.",
    )
    buffered_bytes_max: int = Field(
        default=2 * 1024**3,
        ge=1024**2,
        description="The same bound for all client connections together.",
    )
    principal_claim: str = Field(
        default="sub",
        min_length=1,
        description="Claim of an OAUTHBEARER token that names the principal for these bounds, like "
        "the brokers' `sasl.oauthbearer.sub.claim.name`.",
    )

    @field_validator("control_admins", "control_readers")
    @classmethod
    def _names_are_legal(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not LEGAL_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is no subject such as CN=ops,O=Example, and begins with none of "
                    "DNS:, URI: and email:"
                )
        return value

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        _need(self, "tls_key", "tls_certificate")
        _need(self, "tls_client_ca", "tls_certificate")
        _need(self, "control_tls", "control_certificate", "tls_certificate")
        _need(self, "control_certificate", "control_tls")
        _need(self, "control_key", "control_certificate")
        _need(self, "control_client_ca", "control_tls")
        _need(self, "control_client_ca", "control_admins", "control_readers")
        _need(self, "control_admins", "control_client_ca")
        _need(self, "control_readers", "control_client_ca")
        if both := set(self.control_admins).intersection(self.control_readers):
            raise ValueError(f"control_readers: {min(both)} is in control_admins as well")
        _need(self, "upstream_ca", "upstream_tls")
        _need(self, "upstream_certificate", "upstream_tls")
        _need(self, "upstream_key", "upstream_certificate")
        _need(self, "login_username", "login_mechanism")
        _need(self, "control_read_token_file", "control_token_file")
        if self.login_mechanism == "OAUTHBEARER":
            if not self.login_token_file:
                raise ValueError("login_mechanism OAUTHBEARER needs login_token_file")
        elif self.login_mechanism is not None and not self.login_username:
            raise ValueError(f"login_mechanism {self.login_mechanism} needs login_username")
        return self


def _need(config: SecurityConfig, key: str, *others: str) -> None:
    """Refuse a key that does nothing, since all of the others are left out."""
    if getattr(config, key) and not any(getattr(config, other) for other in others):
        raise ValueError(f"{key} needs {' or '.join(others)}")


def expect_control_guard(config: SecurityConfig, control_host: str) -> None:
    """Raises: ValueError, for a control port that others can connect to and nothing guards."""
    if not (config.control_token_file or config.control_client_ca or is_loopback(control_host)):
        raise ValueError(
            f"control: {control_host} is no loopback address, set control_token_file or "
            "control_client_ca"
        )


def expect_node_secret(config: SecurityConfig, hosts: Iterable[str]) -> None:
    """Raises: ValueError, for one of many nodes that others can reach, without a secret.

    hosts: where it listens, and the addresses that clients get.
    """
    open_to = next((host for host in hosts if not is_loopback(host)), None)
    if open_to is not None and not config.node_secret_file:
        raise ValueError(
            f"node_secret_file: needed by nodes with a number, as {open_to} is no loopback "
            "address; make one file for all nodes with: openssl rand -hex 32 > node-secret"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address that is bound."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, and any but this one may lead anywhere
        return host.lower() == "localhost"
