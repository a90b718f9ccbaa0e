"""Settings of the Python consumer, checked; names and defaults are those of aiokafka and Java.

Source: Apache Kafka 4.3, "Consumer Configs"; aiokafka 0.14, AIOKafkaConsumer.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, TypedDict

from keylane.config.source_names import CLIENT_RANGES
from keylane.errors import ConfigInvalid

ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}
RESETS: Final = ("latest", "earliest", "none")
GROUP_PROTOCOLS: Final = ("auto", "consumer", "classic")
REVOKE_COMPLETIONS: Final = ("next-poll", "same-poll")
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")
RANGES_PER_REQUEST_MAX: Final = 65_536
"""Offset ranges of one OffsetCommit: 1 MiB of them."""


class ConsumerOptions(TypedDict, total=False):
    """The settings by name, as `Consumer` takes them; `ConsumerSettings` has their defaults."""

    bootstrap_servers: str | Sequence[str]
    group_id: str | None
    client_id: str
    client_rack: str
    group_protocol: str
    group_instance_id: str | None
    auto_offset_reset: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    isolation_level: str
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    max_buffered_bytes: int
    request_timeout_ms: int
    retry_backoff_ms: int
    metadata_max_age_ms: int
    allow_individual_commit: bool
    max_num_ranges_to_commit: int
    revoke_completion: str
    security_protocol: str
    ssl_context: ssl.SSLContext | None
    sasl_mechanism: str
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str | None
    sasl_oauth_token_provider: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Everything that a consumer is set to. Raises: ConfigInvalid, naming the key."""

    bootstrap_servers: str | Sequence[str] = "localhost:9092"
    """Addresses HOST:PORT, separated by commas or as a list: of keylane for lanes and key
    ranges."""
    group_id: str | None = None
    """None: no group, so all partitions of the topics are read, and nothing is committed."""
    client_id: str = "keylane-python"
    """Named in requests: quotas, rules and logs of brokers and of keylane go by it."""
    client_rack: str = ""
    """Place of this consumer: keylane gives it lanes of partitions that are led there."""
    group_protocol: str = "auto"
    """"consumer" (KIP-848), "classic", or "auto": the first where brokers and keylane have it."""
    group_instance_id: str | None = None
    """Makes a static member (KIP-345): it keeps its partitions over a restart within its
    session."""
    auto_offset_reset: str = "latest"
    """Start where nothing is committed: "earliest", "latest", or "none" for `OffsetMissing`."""
    enable_auto_commit: bool = True
    """Commit what is done on a timer, before partitions are given up, and at the end."""
    auto_commit_interval_ms: int = 5_000
    """Milliseconds between two commits of the timer."""
    max_poll_records: int = 500
    """Records that `getmany` returns at most."""
    max_poll_interval_ms: int = 300_000
    """Longest time between two polls; also how long a partition that is asked back may be kept."""
    session_timeout_ms: int = 45_000
    """Time without contact after which a member is out. With the consumer protocol brokers have
    their own (`group.consumer.session.timeout.ms`)."""
    heartbeat_interval_ms: int = 3_000
    """Of the classic protocol; else the coordinator says it."""
    isolation_level: str = "read_uncommitted"
    """"read_committed" leaves out records of aborted and open transactions."""
    fetch_min_bytes: int = 1
    """A broker waits for so many bytes."""
    fetch_max_bytes: int = 50 << 20
    """Bytes of an answer, unless its first batch is larger."""
    fetch_max_wait_ms: int = 500
    """Longest wait for `fetch_min_bytes`."""
    max_partition_fetch_bytes: int = 1 << 20
    """Bytes of a partition in an answer, unless its first batch is larger."""
    max_buffered_bytes: int = 64 << 20
    """Bytes of records that wait for the application; one answer more is taken, however large."""
    request_timeout_ms: int = 40_000
    """After this time without an answer a connection is closed, and the request sent again."""
    retry_backoff_ms: int = 100
    """Pause before a request is sent again."""
    metadata_max_age_ms: int = 300_000
    """Age at which leaders and topics are looked up anew."""
    allow_individual_commit: bool = True
    """False: this consumer takes whole partitions only, and commits no offset ranges."""
    max_num_ranges_to_commit: int = CLIENT_RANGES
    """A commit does not wait for its timer when more ranges have gathered."""
    revoke_completion: str = "next-poll"
    """"next-poll": what is asked back is given up when the next poll begins, unless it is delayed.
    "same-poll": at once, in the poll that learns of it."""
    security_protocol: str = "PLAINTEXT"
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ssl_context: ssl.SSLContext | None = None
    """Certificates and checks of TLS: `ssl.create_default_context(cafile=...)`."""
    sasl_mechanism: str = "PLAIN"
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER."""
    sasl_plain_username: str | None = None
    """Of PLAIN and SCRAM."""
    sasl_plain_password: str | None = None
    """Of PLAIN and SCRAM."""
    sasl_kerberos_service_name: str = "kafka"
    """Of GSSAPI."""
    sasl_kerberos_domain_name: str | None = None
    """Of GSSAPI; None: the host of the broker."""
    sasl_oauth_token_provider: Any = None
    """Of OAUTHBEARER: an `aiokafka.abc.AbstractTokenProvider`."""

    def __post_init__(self) -> None:
        for key, allowed in (
            ("auto_offset_reset", RESETS),
            ("group_protocol", GROUP_PROTOCOLS),
            ("isolation_level", tuple(ISOLATION_LEVELS)),
            ("revoke_completion", REVOKE_COMPLETIONS),
            ("security_protocol", SECURITY_PROTOCOLS),
            ("sasl_mechanism", SASL_MECHANISMS),
        ):
            value = getattr(self, key)
            if value not in allowed:
                raise ConfigInvalid(f"{key} is {value!r}, expected one of {', '.join(allowed)}")
        for key, lowest in (
            ("auto_commit_interval_ms", 0), ("max_poll_records", 1), ("max_poll_interval_ms", 1),
            ("session_timeout_ms", 1), ("heartbeat_interval_ms", 1), ("fetch_min_bytes", 0),
            ("fetch_max_bytes", 1), ("fetch_max_wait_ms", 0), ("max_partition_fetch_bytes", 1),
            ("max_buffered_bytes", 1), ("request_timeout_ms", 1), ("retry_backoff_ms", 0),
            ("metadata_max_age_ms", 1), ("max_num_ranges_to_commit", 1),
        ):  # fmt: skip
            value = getattr(self, key)
            if not isinstance(value, int) or value < lowest:
                raise ConfigInvalid(f"{key} is {value!r}, expected a number from {lowest} on")
        if self.fetch_max_wait_ms >= self.request_timeout_ms:
            raise ConfigInvalid("fetch_max_wait_ms must be below request_timeout_ms")
        if self.security_protocol in ("SSL", "SASL_SSL") and self.ssl_context is None:
            raise ConfigInvalid(f"security_protocol {self.security_protocol} needs ssl_context")
        if self.security_protocol.startswith("SASL_"):
            self._check_login()

    def _check_login(self) -> None:
        """Look for what the mechanism needs; aiokafka does when it connects, in other words."""
        mechanism = self.sasl_mechanism
        if mechanism == "OAUTHBEARER":
            from aiokafka.abc import AbstractTokenProvider  # noqa: PLC0415 -- most need none

            if not isinstance(self.sasl_oauth_token_provider, AbstractTokenProvider):
                key = "sasl_oauth_token_provider, an aiokafka.abc.AbstractTokenProvider"
                raise ConfigInvalid(f"sasl_mechanism OAUTHBEARER needs {key}")
        elif mechanism == "GSSAPI":
            if find_spec("gssapi") is None:
                raise ConfigInvalid("sasl_mechanism GSSAPI needs the package gssapi")
        else:
            for key in ("sasl_plain_username", "sasl_plain_password"):
                if getattr(self, key) is None:
                    raise ConfigInvalid(f"sasl_mechanism {mechanism} needs {key}")

    @property
    def isolation(self) -> int:
        """The isolation level as it stands in a request."""
        return ISOLATION_LEVELS[self.isolation_level]

    @property
    def retry_backoff_s(self) -> float:
        """Seconds before a request is sent again."""
        return self.retry_backoff_ms / 1000
