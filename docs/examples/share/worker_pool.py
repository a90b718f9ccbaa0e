"""A share consumer with a pool of threads, and an outcome for each record.

The threads work, and the main thread alone has the consumer: it sends each outcome as soon as the
work has ended.

librdkafka cannot renew a lock (KIP-1222), so the group's share.record.lock.duration.ms bounds the
time from the poll to the outcome, the wait for a thread included: 30 s by default. Records beyond
it come again, and their late outcome is refused. A group with longer work has a longer duration:

kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type groups --entity-name GROUP \
    --add-config share.record.lock.duration.ms=60000

python worker_pool.py BOOTSTRAP GROUP TOPIC
"""

import signal
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from confluent_kafka import AcknowledgeType, Message, ShareConsumer

THREADS = 4
BATCH = 2 * THREADS
"""The next poll follows when the slowest record of a batch is done, so a batch is small."""

stopping = threading.Event()


def log(event: str, message: Message) -> None:
    """Print a line about a record."""
    key, value = ((each or b"-").decode() for each in (message.key(), message.value()))
    line = f"{event} {message.offset()} {key} {value} {message.delivery_count()}\n"
    sys.stdout.write(line)  # one write, since several threads print
    sys.stdout.flush()


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
    """In a thread of the pool: work on a record, return its outcome."""
    if stopping.is_set() or message.error():
        return AcknowledgeType.RELEASE  # its work has not begun
    try:
        work(message)
    except OSError:
        return AcknowledgeType.RELEASE
    except ValueError:
        return AcknowledgeType.REJECT
    return AcknowledgeType.ACCEPT


def main(bootstrap: str, group: str, topic: str) -> None:
    """Poll until SIGTERM; work that has begun is done then."""
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": BATCH,
    }
    with ShareConsumer(config) as consumer, ThreadPoolExecutor(THREADS) as pool:
        consumer.subscribe([topic])
        while not stopping.is_set():
            at_work = {pool.submit(outcome_of, message): message for message in consumer.poll(0.2)}
            while at_work:
                ended, _ = wait(at_work, return_when=FIRST_COMPLETED)
                for future in ended:
                    message, outcome = at_work.pop(future), future.result()
                    log(outcome.name, message)
                    consumer.acknowledge(message, outcome)
                # At once: the next record of a key waits for it. commit_async() of librdkafka 2.16
                # may send offsets in descending order, which brokers refuse.
                for partition, error in consumer.commit_sync().items():
                    if error:  # a lock had ended, for example: its record comes again
                        print("not acknowledged:", partition, error, file=sys.stderr)
    print("CLOSED", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
