"""A stock consumer of the group `billing`, with 20 ms of work: python member.py [BOOTSTRAP]."""

import os
import sys
import time

from confluent_kafka import Consumer

bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:19092"
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": "billing",
        "client.id": f"member-{os.getpid()}",
        "auto.offset.reset": "earliest",  # a group without commits begins with the first record
        "session.timeout.ms": 10_000,  # a killed member is given up after 10 s
        "auto.commit.interval.ms": 1_000,
        "enable.auto.offset.store": False,  # see the end of the loop
    }
)
consumer.subscribe(
    ["orders"],
    on_assign=lambda _, lanes: print("reads", sorted(lane.partition for lane in lanes), flush=True),
)
print(f"member {os.getpid()} at {bootstrap}", flush=True)
try:
    while True:
        record = consumer.poll(1.0)
        if record is None:
            continue
        if record.error():
            print(record.error(), file=sys.stderr, flush=True)  # the consumer itself tries again
            continue
        time.sleep(0.02)  # the work: a web request, a database call
        place = f"{record.partition()} offset {record.offset()}"
        print(record.key().decode(), record.value().decode(), "of", place, flush=True)
        consumer.store_offsets(record)  # its work is done: the next commit covers it
except KeyboardInterrupt:
    consumer.close()  # commits, and leaves the group
