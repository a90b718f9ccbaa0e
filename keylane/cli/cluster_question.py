"""Partition counts of topics, asked of a cluster without a proxy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from keylane.errors import ConfigInvalid, KafkaUnavailable
from keylane.proxy.runtime.log_setup import muted_log

ASK_TIMEOUT_MS: Final = 10_000
"""Half of aiokafka's default is enough to say that no broker answers."""
UNKNOWN_TOPIC: Final = 3
DENIED: Final = 29


async def count_partitions(bootstrap: str, topics: Sequence[str]) -> dict[str, int]:
    """Return the partition counts of the topics.

    Raises:
        ConfigInvalid: the cluster has no such topic, or does not show it.
        KafkaUnavailable: no broker answers.
    """
    # Loaded only when a cluster is asked: everything else of `assign` needs no client.
    from aiokafka.admin import AIOKafkaAdminClient  # noqa: PLC0415
    from aiokafka.errors import KafkaConnectionError, KafkaError  # noqa: PLC0415

    admin = AIOKafkaAdminClient(
        bootstrap_servers=bootstrap, client_id="keylane-assign", request_timeout_ms=ASK_TIMEOUT_MS
    )
    try:
        with muted_log():  # lines about each try would stand before the one that ends the command
            await admin.start()
            described = await admin.describe_topics(list(topics))
    except KafkaConnectionError:
        raise KafkaUnavailable(f"--bootstrap {bootstrap}: no broker can be reached there") from None
    except (KafkaError, OSError, ValueError) as error:
        raise KafkaUnavailable(f"--bootstrap {bootstrap}: {error}") from None
    finally:
        await admin.close()
    found: dict[str, dict[str, Any]] = {answer["topic"]: answer for answer in described}
    for topic in topics:
        code = found[topic]["error_code"] if topic in found else UNKNOWN_TOPIC
        if code != 0:
            raise ConfigInvalid(f"--topic {topic}: {_reason(code)} at {bootstrap}")
    return {topic: len(found[topic]["partitions"]) for topic in topics}


def _reason(code: int) -> str:
    if code == UNKNOWN_TOPIC:
        return "there is no such topic"
    if code == DENIED:
        return "the right to describe the topic is missing"
    return f"Kafka's error code {code}"
