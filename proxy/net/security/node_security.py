"""Security of a node's connections: TLS on both sides, keylane's own login."""

from __future__ import annotations

import logging
from typing import Any

from keylane.config.security import SecurityConfig
from keylane.proxy.net.security.service_login import ServiceLogin
from keylane.proxy.net.security.tls import (
    ReloadingContext,
    open_listener_context,
    open_upstream_context,
)

log = logging.getLogger("keylane.security")


class Security:
    """Parts that are configured; None for those that are not."""

    def __init__(self, config: SecurityConfig) -> None:
        """Raises: ConfigInvalid (a file that cannot be used)."""
        self.listener: ReloadingContext | None = None
        """TLS for clients."""
        self.control: ReloadingContext | None = None
        """TLS of the control port."""
        self.upstream: ReloadingContext | None = None
        """TLS to brokers."""
        self.login: ServiceLogin | None = None
        if config.tls_certificate is not None:
            self.listener = open_listener_context(
                config.tls_certificate, config.tls_key, config.tls_client_ca
            )
        if config.control_tls:
            self.control = _open_control_context(config)
        if config.upstream_tls:
            self.upstream = open_upstream_context(
                config.upstream_ca,
                config.upstream_certificate,
                config.upstream_key,
                verify_hostname=config.upstream_verify_hostname,
            )
        if config.login_mechanism is not None:
            self.login = ServiceLogin(config)
            if self.upstream is None:
                log.warning(
                    "keylane logs in without TLS, others may listen in mechanism=%s"
                    " remedy=set upstream_tls",
                    self.login.mechanism,
                )
        # A broker's listener without SASL takes a client for the owner of the certificate that it
        # sees, which is keylane's. And where keylane has to log in, so have clients.
        self.is_login_required = self.login is not None or config.upstream_certificate is not None

    def poll(self, *, force: bool = False) -> None:
        """Read certificates again that have changed (`force`: all)."""
        for context in (self.listener, self.control, self.upstream):
            if context is not None:
                context.poll(force=force)

    def aiokafka_options(self) -> dict[str, Any]:
        """Return keyword arguments of aiokafka's clients, with the secret as it is now.

        Raises: LoginRefused (the secret cannot be read).
        """
        protocol = "SSL" if self.upstream is not None else "PLAINTEXT"
        options: dict[str, Any] = {"security_protocol": protocol}
        if self.upstream is not None:
            options["ssl_context"] = self.upstream
        if self.login is not None:
            options |= self.login.aiokafka_options() | {"security_protocol": f"SASL_{protocol}"}
        return options


def _open_control_context(config: SecurityConfig) -> ReloadingContext:
    """Return TLS of the control port. Raises: ConfigInvalid."""
    certificate, key, name = config.control_certificate, config.control_key, "control_certificate"
    if certificate is None:
        certificate, key, name = config.tls_certificate, config.tls_key, "tls_certificate"
    assert certificate is not None, "checked by the configuration"
    # Not required: a kubelet's probe has no certificate, and a client with a token needs none.
    return open_listener_context(
        certificate, key, config.control_client_ca, name=name, is_certificate_required=False
    )
