"""Rights without which a node would start, and then refuse its groups: asked for at its start.

Source: KIP-430 (authorized operations), KIP-98 (InitProducerId); docs/operations.md.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from keylane.config.own_names import JOURNAL_ID_PREFIX, JOURNAL_TOPIC, SCANS_TOPIC
from keylane.errors import ConfigInvalid, LoginRefused, RightMissing, UpstreamLost
from keylane.journal.epochs import Brokers, next_epoch
from keylane.proxy.apis.shared.request import Operation

log = logging.getLogger("keylane.nodes")

PROBE: Final = f"{JOURNAL_ID_PREFIX}probe"
"""No node writes with it: to be given an epoch shows the right, and fences none."""
NOT_GIVEN: Final = -(2**31)
"""Operations of a broker that was not asked, or does not know."""
NEEDED: Final = (Operation.READ, Operation.WRITE)
TOPICS: Final = (JOURNAL_TOPIC, SCANS_TOPIC)


async def expect_rights(brokers: Brokers) -> None:
    """Ask for the rights; brokers that do not answer are logged, and not waited for.

    Raises: ConfigInvalid, which names the first right that is missing; LoginRefused.
    """
    try:
        await _expect_rights(brokers)
    except LoginRefused:
        raise
    except UpstreamLost as error:
        log.warning("rights of keylane's principal are not known reason=%s", error)


async def _expect_rights(brokers: Brokers) -> None:
    question = MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=TopicName(name)) for name in TOPICS),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=True,
    )
    answer = await brokers.request(question)
    for topic in answer.topics:
        lacking = _lacking(topic)
        if lacking:
            raise ConfigInvalid(
                f"keylane's principal needs {' and '.join(lacking)} on the topic {topic.name}"
            )
    try:
        await next_epoch(brokers, PROBE)
    except RightMissing as error:
        raise ConfigInvalid(
            "keylane's principal needs DESCRIBE and WRITE on transactional ids with the prefix "
            f"{JOURNAL_ID_PREFIX} ({error})"
        ) from None


def _lacking(topic: Any) -> list[str]:
    operations = int(topic.topic_authorized_operations)
    if topic.error_code == ErrorCode.topic_authorization_failed:
        operations = 0  # not even DESCRIBE: then the answer has none
    if operations == NOT_GIVEN:
        log.debug("rights are not known topic=%s error_code=%s", topic.name, topic.error_code)
        return []
    return [needed.name for needed in NEEDED if not operations & 1 << needed]
