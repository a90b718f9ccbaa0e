"""Producer epochs: an owner that is given the next one of a transactional id fences those before.

Source: KIP-98 (InitProducerId), KIP-360; docs/decisions/022.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final, Protocol

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v1.request import InitProducerIdRequest
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName, TransactionalId
from kio.static.primitive import i8, i32Timedelta

from keylane.errors import RightMissing, UpstreamLost

OF_TRANSACTIONS: Final = i8(1)
TRANSACTIONS: Final = TopicName("__transaction_state")
"""Kafka's topic of transactions; a broker that is asked for a coordinator makes it."""
TRANSACTION_TIMEOUT: Final = i32Timedelta.parse(timedelta(seconds=10))
"""There are no transactions; Kafka asks for one all the same."""
TIMEOUT_S: Final = 30.0
"""In a new cluster Kafka makes its topic of transactions first."""
RETRY_BACKOFF_S: Final = 0.1
"""Kafka clients' `retry.backoff.ms` default; no event says when a coordinator is there."""
REFUSALS: Final = frozenset(
    {
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    }
)
LATER: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    }
)
"""Another try finds the coordinator, sooner or later."""


class Brokers(Protocol):
    """Brokers that are asked (`proxy.cluster.cluster`)."""

    async def request(self, entity: Any) -> Any:
        """Ask any broker. Raises: UpstreamLost."""

    async def ask_broker(self, node_id: int, entity: Any) -> Any:
        """Ask one of them. Raises: UpstreamLost."""

    async def learn_brokers(self, brokers: Any) -> None:
        """Take note of brokers in an answer."""


async def next_epoch(brokers: Brokers, transactional_id: str) -> tuple[int, int]:
    """Return (producer id, epoch), the epoch one more than any before.

    Raises: UpstreamLost; RightMissing, without WRITE on the id.
    """
    refused = ErrorCode.coordinator_not_available
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                answer = await _ask(brokers, transactional_id)
                if isinstance(answer, tuple):
                    return answer
                refused = answer
                if refused not in LATER:
                    kind = RightMissing if refused in REFUSALS else UpstreamLost
                    raise kind(f"transactional id {transactional_id}: {refused.name}")
                await asyncio.sleep(RETRY_BACKOFF_S)
    except TimeoutError:
        reason = f"transactional id {transactional_id}: {refused.name} for {TIMEOUT_S:g} s"
        raise UpstreamLost(reason) from None


async def has_transactions(brokers: Brokers) -> bool:
    """Return whether the cluster has transactions, even if their coordinator does not answer now.

    Ask after `next_epoch`: a topic that can be made is there by then. One that the principal may
    not see counts as there. Raises: UpstreamLost.
    """
    answer = await brokers.request(
        MetadataRequest(
            topics=(MetadataRequestTopic(name=TRANSACTIONS),),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
    )
    (topic,) = answer.topics
    return bool(topic.error_code != ErrorCode.unknown_topic_or_partition)


async def _ask(brokers: Brokers, transactional_id: str) -> tuple[int, int] | ErrorCode:
    found = await brokers.request(
        FindCoordinatorRequest(key=transactional_id, key_type=OF_TRANSACTIONS)
    )
    if found.error_code != ErrorCode.none:
        return ErrorCode(found.error_code)
    await brokers.learn_brokers((found,))
    request = InitProducerIdRequest(
        transactional_id=TransactionalId(transactional_id),
        transaction_timeout=TRANSACTION_TIMEOUT,
    )
    answer = await brokers.ask_broker(int(found.node_id), request)
    if answer.error_code != ErrorCode.none:
        return ErrorCode(answer.error_code)
    return int(answer.producer_id), int(answer.producer_epoch)
