"""A share consumer in implicit mode: the next poll accepts all that the poll before has returned.

python implicit.py BOOTSTRAP GROUP TOPIC
"""

import signal
import sys
import threading

from confluent_kafka import Message, ShareConsumer


def log(event: str, message: Message) -> None:
    """Print a line about a record."""
    key, value = ((each or b"-").decode() for each in (message.key(), message.value()))
    print(event, message.offset(), key, value, message.delivery_count(), flush=True)


def work(message: Message) -> None:
    """Work on a record, here a stand-in."""
    log("WORK", message)
    if message.value() == b"slow":
        threading.Event().wait(0.5)


def main(bootstrap: str, group: str, topic: str) -> None:
    """Poll until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "max.poll.records": 10,  # keys wait until the whole batch is accepted
    }
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        while not stopping.is_set():
            for message in consumer.poll(0.2):
                if message.error():
                    print(message.error(), file=sys.stderr)
                    continue
                # An exception ends the program: close() accepts nothing, so the batch comes again.
                work(message)
                log("DONE", message)
        consumer.commit_sync()  # accept the last batch, which no poll follows
    print("CLOSED", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
