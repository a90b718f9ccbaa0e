"""A topic of a cluster that may have started a moment ago."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TIMEOUT_S = 60


def make_topic(admin: AdminClient, wanted: NewTopic) -> None:
    """Create a topic. Raises: KafkaException.

    librdkafka lets go of a broker that its newest metadata lacks, with what it was asked. A broker
    that has just started does not know all others yet, so that may happen once.
    """
    try:
        _create(admin, wanted)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._DESTROY_BROKER:
            raise
        try:
            _create(admin, wanted)
        except KafkaException as again:
            if again.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _create(admin: AdminClient, wanted: NewTopic) -> None:
    made = admin.create_topics([wanted], operation_timeout=TIMEOUT_S / 2)
    made[wanted.topic].result(TIMEOUT_S)
    # The controller has it; a broker that has not applied that yet does not name it to clients.
    while admin.list_topics(wanted.topic, TIMEOUT_S).topics[wanted.topic].error is not None:
        pass
