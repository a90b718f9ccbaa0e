"""A share consumer in explicit mode that stops a batch at its first error.

This is the third program of KIP-932. Records before the error are accepted, the failed one is
rejected, and the rest are released: librdkafka does not poll while records have no outcome, and
cannot renew (KIP-1222). Each release counts as a delivery, so the group's limit of deliveries
bounds how often a record may be behind an error.

python stop_at_first_error.py BOOTSTRAP GROUP TOPIC
"""

import signal
import sys
import threading

from confluent_kafka import AcknowledgeType, Message, ShareConsumer


def log(event: str, message: Message) -> None:
    """Print a line about a record."""
    key, value = ((each or b"-").decode() for each in (message.key(), message.value()))
    print(event, message.offset(), key, value, message.delivery_count(), flush=True)


def work(message: Message) -> None:
    """Work on a record, here a stand-in: "never" fails."""
    log("WORK", message)
    match message.value():
        case b"never":
            raise ValueError("no such order")
        case b"slow":
            threading.Event().wait(0.5)


def outcome_of(message: Message) -> AcknowledgeType:
    """Work on a record, return its outcome."""
    try:
        work(message)
    except ValueError:
        return AcknowledgeType.REJECT
    return AcknowledgeType.ACCEPT


def main(bootstrap: str, group: str, topic: str) -> None:
    """Poll until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 10,
    }
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        while not stopping.is_set():
            has_failed = False
            for message in consumer.poll(0.2):
                if stopping.is_set():
                    break  # close() releases what has no outcome
                outcome = AcknowledgeType.RELEASE
                if not has_failed and not message.error():
                    outcome = outcome_of(message)
                    has_failed = outcome == AcknowledgeType.REJECT
                log(outcome.name, message)
                consumer.acknowledge(message, outcome)
            for partition, error in consumer.commit_sync().items():
                if error:  # the lock had ended, for example: these records come again
                    print("not acknowledged:", partition, error, file=sys.stderr)
            # After an error, a real program would look for its cause here.
    print("CLOSED", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
