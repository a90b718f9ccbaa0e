"""Settings of the Python consumer, checked; names and defaults are those of aiokafka and Java.

Source: Apache Kafka 4.3, "Consumer Configs"; aiokafka 0.14, AIOKafkaConsumer.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from keylane.errors import ConfigInvalid

ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}
RESETS: Final = ("latest", "earliest", "none")
GROUP_PROTOCOLS: Final = ("auto", "consumer", "classic")
REVOKE_COMPLETIONS: Final = ("next-poll", "same-poll")
SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
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
    group_id: str | None = None
    client_id: str = "keylane-python"
    client_rack: str = ""
    group_protocol: str = "auto"
    group_instance_id: str | None = None
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    isolation_level: str = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 << 20
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1 << 20
    max_buffered_bytes: int = 64 << 20
    """Bytes of records that wait for the application; one answer more is taken, however large."""
    request_timeout_ms: int = 40_000
    retry_backoff_ms: int = 100
    metadata_max_age_ms: int = 300_000
    allow_individual_commit: bool = True
    max_num_ranges_to_commit: int = 10_000
    revoke_completion: str = "next-poll"
    security_protocol: str = "PLAINTEXT"
    ssl_context: ssl.SSLContext | None = None
    sasl_mechanism: str = "PLAIN"
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = None
    sasl_kerberos_service_name: str = "kafka"
    sasl_kerberos_domain_name: str | None = None
    sasl_oauth_token_provider: Any = None
    """An `aiokafka.abc.AbstractTokenProvider`."""

    def __post_init__(self) -> None:
        for key, allowed in (
            ("auto_offset_reset", RESETS),
            ("group_protocol", GROUP_PROTOCOLS),
            ("isolation_level", tuple(ISOLATION_LEVELS)),
            ("revoke_completion", REVOKE_COMPLETIONS),
            ("security_protocol", SECURITY_PROTOCOLS),
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

    @property
    def isolation(self) -> int:
        """The isolation level as it stands in a request."""
        return ISOLATION_LEVELS[self.isolation_level]

    @property
    def retry_backoff_s(self) -> float:
        """Seconds before a request is sent again."""
        return self.retry_backoff_ms / 1000
