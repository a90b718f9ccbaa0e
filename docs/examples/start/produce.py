"""Write numbered orders of 40 customers to the topic `orders`: python produce.py [BOOTSTRAP]."""

import itertools
import sys
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
admin = AdminClient({"bootstrap.servers": bootstrap})
if "orders" not in admin.list_topics(timeout=30).topics:
    admin.create_topics([NewTopic("orders", num_partitions=2)])["orders"].result(30)

producer = Producer({"bootstrap.servers": bootstrap})
try:
    for number in itertools.count():
        producer.produce("orders", value=str(number), key=f"customer-{number % 40}")
        producer.poll(0)
        if number % 1000 == 0:
            print(f"{number} orders written", flush=True)
        time.sleep(0.02)  # 50 orders a second
except KeyboardInterrupt:
    producer.flush()
    print(f"{number} orders written", flush=True)
