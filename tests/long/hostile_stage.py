"""A secured Kafka with users that have few rights, and keylane in front of it.

In:    a folder.  Out: `HostileStage`: brokers, users, topics, keylane processes.

alice reads and writes all topics and reads all groups, as a client of a careless set-up does.
mallory, the attacker, may read `orders`, write `junk`, see `orders2`, and has the group `mine`.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.certificates import Authority
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.made_topics import make_topic

LISTENER: Final = "SECURED"
PASSWORDS: Final = {name: f"{name}-password-Zq7" for name in ("alice", "mallory", "keylane")}
TOPICS: Final = {"orders": 4, "orders2": 4, "junk": 1, "secret": 2, "plain": 2}
LANES: Final = ("orders=4", "orders2=4", "secret=4")
SERVICE_TOPICS: Final = ("__individual_commit_offsets", "__keylane_settings", "__keylane_scans")
KEYS: Final = [f"key-{number}" for number in range(20)]
MEMORY_MIB: Final = 960
"""`memory_max` of a container with 1 GiB."""
MODULES: Final = "org.apache.kafka.common.security"
BEARER: Final = f"{MODULES}.oauthbearer"


def broker_properties() -> dict[str, str]:
    """A listener without TLS that asks for a login, and ACLs."""
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    prefix = f"listener.name.{LISTENER.lower()}."
    handler = f"{BEARER}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # the plain listener: nodes, and the run's own admin
        f"{prefix}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        f"{prefix}plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required {users};",
        f"{prefix}scram-sha-256.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
        f"{prefix}oauthbearer.sasl.jaas.config": f"{BEARER}.OAuthBearerLoginModule required;",
        f"{prefix}oauthbearer.sasl.server.callback.handler.class": handler,
        "connection.failed.authentication.delay.ms": "0",  # thousands of logins fail
    }


def rule(user: str, operation: str, kind: str = "TOPIC", name: str = "*") -> AclBinding:
    """An ACL that allows; a name that ends in `-` means all that begin with it."""
    pattern = "PREFIXED" if name.endswith("-") else "LITERAL"
    return AclBinding(
        ResourceType[kind], name, ResourcePatternType[pattern], f"User:{user}", "*",
        AclOperation[operation], AclPermissionType.ALLOW,
    )  # fmt: skip


def rules() -> list[AclBinding]:
    """Return the rights that keylane needs among many nodes, and those of the two users."""
    found = [rule("keylane", "READ")]
    for name in SERVICE_TOPICS:
        operations = ("CREATE", "WRITE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
        found += [rule("keylane", operation, name=name) for operation in operations]
    found += [
        rule("keylane", "DESCRIBE_CONFIGS", name="__consumer_offsets"),
        rule("keylane", "DESCRIBE", "GROUP", "keylane"),
        rule("keylane", "READ", "GROUP", "__keylane_nodes"),
        rule("keylane", "WRITE", "TRANSACTIONAL_ID", "keylane-"),
        rule("alice", "READ"),
        rule("alice", "WRITE"),
        rule("alice", "READ", "GROUP"),
        rule("mallory", "READ", name="orders"),
        rule("mallory", "WRITE", name="junk"),
        rule("mallory", "DESCRIBE", name="orders2"),
        rule("mallory", "READ", "GROUP", "mine"),
    ]
    return found


class HostileStage:
    """Use: `with HostileStage(folder, memory_mib) as stage`."""

    def __init__(self, folder: Path, memory_mib: float) -> None:
        """memory_mib: `memory_max` of every keylane."""
        self.folder, self.memory_mib = folder, memory_mib
        self.authority = Authority(folder / "ca")
        self.certificate = self.authority.issue("keylane")
        self._password_file = folder / "keylane-password"
        self._password_file.write_text(PASSWORDS["keylane"])
        self._secret_file = folder / "node-secret"
        self._secret_file.write_text("node-secret-0123456789-0123456789-0123456789")
        self._secret_file.chmod(0o600)
        self.kafka = EmbeddedKafka(
            folder / "kafka", properties=broker_properties(), listeners={LISTENER: "SASL_PLAINTEXT"}
        )
        self.proxies: list[KeylaneProcess] = []

    def __enter__(self) -> Self:
        self.kafka.start()
        self.admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        credentials: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(
                name, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), password.encode()
            )
            for name, password in PASSWORDS.items()
        ]
        for made in self.admin.alter_user_scram_credentials(credentials).values():
            made.result(60)
        for allowed in self.admin.create_acls(rules()).values():
            allowed.result(60)
        for topic, partitions in TOPICS.items():
            make_topic(self.admin, NewTopic(topic, partitions, 1))
            produce(self.kafka.bootstrap, topic, KEYS, 10)
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self.proxies:
            proxy.stop()
        self.kafka.stop()

    def forget(self) -> None:
        """Delete keylane's own topics, whatever was written there; no keylane may run."""
        listed = self.admin.list_topics(timeout=30).topics
        wanted = [str(name) for name in SERVICE_TOPICS if name in listed]
        for deleted in (self.admin.delete_topics(wanted) if wanted else {}).values():
            deleted.result(60)

    @property
    def direct(self) -> str:
        """The brokers' own listener, where users log in."""
        return self.kafka.bootstrap_of(LISTENER)

    def keylane(
        self, *settings: str, node: int | None = None, lanes: tuple[str, ...] = LANES
    ) -> KeylaneProcess:
        """Return a keylane with its own log, which is not started yet."""
        common = [
            "login_mechanism=SCRAM-SHA-256",
            "login_username=keylane",
            f"login_password_file={self._password_file}",
            f"memory_max={round(self.memory_mib * 1024**2)}",
        ]
        if node is not None:
            common.append(f"node_secret_file={self._secret_file}")
        args = [part for each in (*common, *settings) for part in ("--set", each)]
        args += [] if node is None else ["--node", str(node)]
        proxy = KeylaneProcess(
            self.direct,
            lanes,
            log_path=self.folder / f"keylane-{len(self.proxies)}.log",
            args=args,
            environment={"KEYLANE_LOG": "info"},
        )
        self.proxies.append(proxy)
        return proxy


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Processes that begin here may have so many files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
