"""A secured broker and keylane in front of it, once for all security tests."""

from __future__ import annotations

import re
import ssl
import urllib.request
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from keylane.embedded import EmbeddedKafka
from tests.integration.certificates import Authority
from tests.integration.conftest import SHARE, make_topic_factory
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.secured import (
    PASSWORDS,
    SECRETS,
    USERS,
    Login,
    allow,
    broker_properties,
    make_users,
    rule,
)

KEYS = ("ann", "ben", "cid", "dot", "eve", "fay")
OWN_TOPICS = ("__individual_commit_offsets", "__keylane_settings")
SERVICE_RULES = (
    rule("keylane", "READ"),
    *(
        rule("keylane", operation, name=name)
        for name in OWN_TOPICS
        for operation in ("CREATE", "WRITE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
    ),
    rule("keylane", "DESCRIBE_CONFIGS", name="__consumer_offsets"),
    rule("keylane", "DESCRIBE", "GROUP", "keylane"),
    rule("keylane", "READ", "GROUP", "__keylane_nodes"),
    AclBinding(
        ResourceType.TRANSACTIONAL_ID,
        "keylane-ic-",
        ResourcePatternType.PREFIXED,
        "User:keylane",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    ),
)
"""Rights that keylane's own principal needs; docs/security.md lists the same."""


class Stage:
    """The broker, an authority, and keylane in front of the broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.ca = self.authority.ca
        self.certificate = self.authority.issue("keylane")
        self.expired = self.authority.issue("expired", expired=True)
        keystore = self.authority.issue("broker")
        self.password_file = folder / "keylane-password"
        self.password_file.write_text(PASSWORDS["keylane"] + "\n")
        self.kafka = EmbeddedKafka(
            folder / "kafka",
            properties={**SHARE, **broker_properties(self.authority, keystore, self.expired)},
            listeners=dict.fromkeys(("SECURED", "MUTUAL", "EXPIRED"), "SASL_SSL"),
        )
        self.proxies: list[KeylaneProcess] = []
        self.values: set[str] = set()
        """Values of records, which may be in no log and no metric either."""
        self.control_token = folder / "control-token"
        self.control_token.write_text("control-token-0123456789")
        SECRETS.add(self.control_token.read_text())

    def start(self) -> None:
        """Start the broker with users and ACLs, and the proxy that most tests share."""
        self.kafka.start()
        self.admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        make_users(self.admin)
        allow(self.admin, *SERVICE_RULES)
        for user in USERS:
            allow(self.admin, rule(user, "WRITE", "TRANSACTIONAL_ID", f"{user}s-own"))
        for user in ("alice", "bob", "carol"):
            allow(self.admin, rule(user, "READ", "GROUP"))
        for user in ("alice", "dave"):
            allow(self.admin, rule(user, "READ"), rule(user, "WRITE"))
        allow(self.admin, rule("bob", "DESCRIBE"))
        self.direct = self.kafka.bootstrap_of("SECURED")
        self.proxy = self.start_keylane(self.direct, f"tls_certificate={self.certificate}")

    def start_keylane(self, upstream: str, *settings: str) -> KeylaneProcess:
        """Start keylane with TLS on both sides and its own login; later settings win."""
        # Not the shared one's: a test lets that expire, and others would read it meanwhile.
        own = self.authority.issue(f"keylane-{len(self.proxies)}")
        common = (
            f"tls_certificate={own}",
            "upstream_tls=true",
            f"upstream_ca={self.ca}",
            "login_mechanism=SCRAM-SHA-256",
            "login_username=keylane",
            f"login_password_file={self.password_file}",
            "authorization_ttl_s=1",
        )
        args = [part for setting in (*common, *settings) for part in ("--set", setting)]
        log_path = self.folder / f"keylane-{len(self.proxies)}.log"
        proxy = KeylaneProcess(upstream, ["lanes4-*=4"], log_path=log_path, args=args)
        self.proxies.append(proxy)
        return proxy.start()

    @cached_property
    def strict(self) -> KeylaneProcess:
        """Another keylane: client certificates on both sides, little allowed to a principal."""
        own = self.authority.issue("keylane-client")
        return self.start_keylane(
            self.kafka.bootstrap_of("MUTUAL"),
            *(f"tls_client_ca={self.ca}", f"upstream_certificate={own}"),
            *("control_tls=true", f"control_token_file={self.control_token}"),
            *("connections_per_principal_max=3", "groups_per_principal_max=1"),
            f"buffered_bytes_per_principal_max={1 << 20}",
            "beside_others=true",
        )

    @cached_property
    def renewing(self) -> KeylaneProcess:
        """One whose own login ends every few seconds, as those of clients by this mechanism."""
        settings = ("login_mechanism=SCRAM-SHA-512", "beside_others=true")
        return self.start_keylane(self.direct, *settings)

    def topic(self, test_name: str, rounds: int = 3) -> tuple[str, list[str]]:
        """A topic of two partitions and eight lanes, and the values in it."""
        name = make_topic_factory(self.admin, test_name)("lanes4", partitions=2)
        return name, self.produce(name, rounds)

    def plain_topic(self, test_name: str) -> str:
        """An empty topic of one partition, without lanes."""
        return make_topic_factory(self.admin, test_name)("plain", partitions=1)

    def produce(self, topic: str, rounds: int, *, first: int = 0) -> list[str]:
        """Produce numbered values; all of them."""
        values = produce(self.kafka.bootstrap, topic, KEYS, rounds, first=first)
        self.values.update(values)
        return values

    def metrics(self, proxy: KeylaneProcess) -> str:
        """Return all numbers of a keylane, as text."""
        scheme = "https" if proxy is self.__dict__.get("strict") else "http"
        asked = urllib.request.Request(f"{scheme}://{proxy.control}/metrics")  # noqa: S310 - ours
        asked.add_header("Authorization", f"Bearer {self.control_token.read_text()}")
        trust = ssl.create_default_context(cafile=str(self.ca))
        with urllib.request.urlopen(asked, context=trust) as answer:  # noqa: S310 - ours
            return str(answer.read().decode())

    def metric(self, name: str, proxy: KeylaneProcess | None = None) -> float:
        """A number of a keylane, of the shared one if none is named, as it stands."""
        text = self.metrics(proxy or self.proxy)
        return float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0])

    def leaks(self) -> list[str]:
        """Return the secrets and records that any keylane has shown by now, and the places."""
        places = {}
        for number, proxy in enumerate(self.proxies):
            places[f"log {number}"] = proxy.log
            if proxy.running:
                places[f"metrics {number}"] = self.metrics(proxy)
                places[f"command {number}"] = " ".join(psutil.Process(proxy.pid).cmdline())
        hidden = [*sorted(SECRETS), *sorted(self.values), "Bearer", "PRIVATE KEY"]
        return [
            f"{secret} in {name}"
            for name, text in places.items()
            for secret in hidden
            if secret in text
        ]

    def login(self, mechanism: str, user: str, **changes: Any) -> Login:
        """See `Login.of`."""
        return Login.of(mechanism, user, self.ca, **changes)

    def stop(self) -> None:
        """End everything."""
        for proxy in self.proxies:
            proxy.stop()
        self.kafka.stop()
