"""A share consumer in explicit mode, with an outcome for each record.

ACCEPT   the work is done
RELEASE  it failed and may succeed later: the record comes again, before later ones of its key
REJECT   it will never succeed: the record does not come again

python per_record.py BOOTSTRAP GROUP TOPIC
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
    """Work on a record, here a stand-in: "later" fails once, "never" fails each time."""
    log("WORK", message)
    match message.value():
        case b"later" if message.delivery_count() == 1:
            raise ConnectionError("the other system is away")
        case b"never":
            raise ValueError("no such order")
        case b"slow":
            threading.Event().wait(0.5)


def outcome_of(message: Message) -> AcknowledgeType:
    """Work on a record, return its outcome."""
    try:
        work(message)
    except OSError:
        return AcknowledgeType.RELEASE
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
            for message in consumer.poll(0.2):
                if stopping.is_set():
                    break  # close() releases what has no outcome
                outcome = AcknowledgeType.RELEASE if message.error() else outcome_of(message)
                log(outcome.name, message)
                consumer.acknowledge(message, outcome)
                # At once: the next record of the key waits for it. commit_async() of librdkafka
                # 2.16 may send offsets in descending order, which brokers refuse.
                for partition, error in consumer.commit_sync().items():
                    if error:  # the lock had ended, for example: the record comes again
                        print("not acknowledged:", partition, error, file=sys.stderr)
    print("CLOSED", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
