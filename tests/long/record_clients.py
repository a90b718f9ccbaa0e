"""Record frames of stock clients: `tests/transcript/client_frames.txt`, made anew by hand.

In:    a folder for data, folders with the built Go program and with KafkaJS.
Out:   one line per client, API, version and shape: `client key version request answer`, the
       frames without their sizes, in base64. Frames above `FRAME_BYTES_MAX` are left out.

`python -m tests.long.record_clients --data FOLDER --go FOLDER --js FOLDER`, after `go mod tidy` and
`go build -o rec .` in a copy of `recorded_clients/go`, and `npm install kafkajs` beside a copy of
`recorded_clients/kafka.js`. Java needs a JDK. librdkafka, aiokafka and kafka-python are those of
the project's environment.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from keylane.embedded import EmbeddedKafka, run_java_tool
from keylane.embedded.java import find_java
from keylane.embedded.ports import find_free_port
from keylane.embedded.resolve import resolve_class_path
from keylane.proxy.apis import ROUTES
from keylane.proxy.apis.connection.api_versions import clamp
from keylane.proxy.apis.shared.request import Request
from keylane.wire.header import ApiKey, read_request_header

FRAME_BYTES_MAX: Final = 8192
SHAPES_MAX: Final = 8
"""Frames kept per client, API and version; they differ in length."""
SIZE: Final = struct.Struct(">i")
HERE: Final = Path(__file__).parent
KEPT: Final = HERE.parent / "transcript" / "client_frames.txt"
PREFIX: Final = "rec-"
SERVED: Final = {key: (route.version_min, route.version_max) for key, route in ROUTES.items()}


class Recorder:
    """A relay of bytes that keeps pairs of request and answer."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self._broker = broker
        self.port = find_free_port()
        self.client = ""
        """Under which name frames are kept; "" for none."""
        self.kept: dict[tuple[str, int, int], dict[int, tuple[bytes, bytes]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        listening = asyncio.start_server(self._relay, "127.0.0.1", self.port)
        asyncio.run_coroutine_threadsafe(listening, self._loop).result(10)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._broker)
        waiting: dict[int, bytes] = {}
        try:
            await asyncio.gather(
                _pump(reader, upstream_writer, lambda f: waiting.update({_id(f, 4): f}) or f),
                _pump(upstream_reader, writer, lambda f: self._keep(waiting.pop(_id(f, 0)), f)),
            )
        except (OSError, asyncio.IncompleteReadError):
            return  # a client that is done
        finally:
            writer.close()
            upstream_writer.close()

    def _keep(self, request: bytes, answer: bytes) -> bytes:
        """Keep both; the answer as the client gets it: with the versions that keylane serves."""
        key, version = struct.unpack_from(">hh", request)
        route = ROUTES.get(key)
        if route is None or not route.version_min <= version <= route.version_max:
            return answer  # between brokers; or asked before the client knows the versions
        shapes = self.kept.setdefault((self.client, key, version), {})
        is_short = max(len(request), len(answer)) <= FRAME_BYTES_MAX
        if is_short and len(request) not in shapes and len(shapes) < SHAPES_MAX:
            shapes[len(request)] = request, answer
        if key != ApiKey.API_VERSIONS:
            return answer
        asked = Request(read_request_header(request), SIZE.pack(len(request)) + request)
        return b"".join(clamp(asked, SIZE.pack(len(answer)) + answer, SERVED))[SIZE.size :]

    def lines(self) -> list[str]:
        """Return what the file holds."""
        return sorted(
            f"{client} {key} {version} {_text(request)} {_text(answer)}"
            for (client, key, version), shapes in self.kept.items()
            if client
            for request, answer in shapes.values()
        )


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keep: Callable[[bytes], bytes]
) -> None:
    while True:
        (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
        frame = keep(await reader.readexactly(size))
        writer.write(SIZE.pack(len(frame)) + frame)
        await writer.drain()


def _id(frame: bytes, position: int) -> int:
    return int(SIZE.unpack_from(frame, position)[0])


def _text(frame: bytes) -> str:
    return base64.b64encode(frame).decode()


def run_java(bootstrap: str) -> None:
    """Console tools, a classic and a KIP-848 member, a pattern that the broker resolves."""
    through = ("--bootstrap-server", bootstrap)
    topic = ("--topic", f"{PREFIX}a")
    run_java_tool("kafka-console-producer", *through, *topic, stdin="v\n" * 5)
    run_java_tool("kafka-console-producer", *through, "--topic", f"{PREFIX}b", stdin="v\n" * 5)
    read = ("--from-beginning", "--max-messages", "3", "--timeout-ms", "20000")
    run_java_tool("kafka-console-consumer", *through, *topic, "--group", "java-classic", *read)
    kip848 = ("--consumer-property", "group.protocol=consumer")
    include = ("--include", f"{PREFIX}.*", "--group", "java-848")
    run_java_tool("kafka-console-consumer", *through, *include, *kip848, *read)
    source = str(HERE / "recorded_clients" / "PatternMember.java")
    command = [str(find_java()), "-cp", resolve_class_path(), source, bootstrap, PREFIX, "java-re"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    run_java_tool(
        "kafka-topics", *through, "--create", "--topic", f"{PREFIX}j", "--partitions", "2"
    )
    run_java_tool("kafka-topics", *through, "--describe", *topic)
    run_java_tool("kafka-topics", *through, "--list")
    run_java_tool("kafka-topics", *through, "--alter", "--topic", f"{PREFIX}j", "--partitions", "3")
    run_java_tool("kafka-topics", *through, "--delete", "--topic", f"{PREFIX}j")
    run_java_tool("kafka-get-offsets", *through, *topic)
    run_java_tool("kafka-get-offsets", *through, *topic, "--time", "max-timestamp")
    groups = ("kafka-consumer-groups", *through)
    run_java_tool(*groups, "--describe", "--all-groups")
    to = ("--reset-offsets", "--to-earliest", "--execute", "--group", "java-classic")
    run_java_tool(*groups, *to, *topic)
    run_java_tool(*groups, "--delete-offsets", "--group", "java-classic", *topic)
    run_java_tool(*groups, "--delete", "--group", "java-classic")
    run_java_tool("kafka-configs", *through, "--describe", *("--entity-type", "topics"), *(
        "--entity-name", f"{PREFIX}a"))  # fmt: skip


def run_librdkafka(bootstrap: str) -> None:
    """A transaction, a classic member by pattern, a KIP-848 one, an admin."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "rec-librdkafka"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(f"{PREFIX}a", b"v", b"k")
    for protocol in ("classic", "consumer"):
        member = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"librdkafka-{protocol}",
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        member.subscribe([f"^{PREFIX}.*"])
        while member.poll(1.0) is None:
            pass
        member.commit(asynchronous=False)
        member.committed([TopicPartition(f"{PREFIX}a", 0)], 10)
        member.offsets_for_times([TopicPartition(f"{PREFIX}a", 0, 1)], 10)
        if protocol == "classic":
            at = [TopicPartition(f"{PREFIX}a", 0, 1)]
            producer.send_offsets_to_transaction(at, member.consumer_group_metadata(), 10)
            producer.commit_transaction(30)
        member.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.list_topics(timeout=10)
    admin.list_topics(f"{PREFIX}a", timeout=10)
    admin.describe_cluster().result(10)
    resource = ConfigResource(ConfigResource.Type.TOPIC, f"{PREFIX}a")
    admin.describe_configs([resource])[resource].result(10)
    asked = [ConsumerGroupTopicPartitions("librdkafka-classic")]
    admin.list_consumer_group_offsets(asked)["librdkafka-classic"].result(10)
    place = TopicPartition(f"{PREFIX}a", 0)
    admin.list_offsets({place: OffsetSpec.latest()})[place].result(10)
    admin.delete_consumer_groups(["librdkafka-classic"])["librdkafka-classic"].result(10)


def run_aiokafka(bootstrap: str) -> None:
    """An idempotent producer and a member by pattern."""

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        async with producer:
            await producer.send_and_wait(f"{PREFIX}a", b"v")
        member = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id="aiokafka", auto_offset_reset="earliest"
        )
        member.subscribe(pattern=f"^{PREFIX}.*")
        async with member:
            await member.getone()
            await member.commit()

    asyncio.run(run())


def run_kafka_python(bootstrap: str) -> None:
    """A producer, a member and an admin."""
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send(f"{PREFIX}a", b"v").get(20)
    producer.close()
    member = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    member.subscribe(pattern=f"^{PREFIX}.*")
    next(member)
    member.commit()
    member.close()
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.list_topics()
    admin.describe_topics([f"{PREFIX}a"])
    admin.describe_cluster()
    admin.close()


def main() -> None:
    """Run all clients, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("data", "go", "js"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    asked = parser.parse_args()
    port = find_free_port()
    recorder = Recorder(("127.0.0.1", port))
    recorder.start()
    address = f"127.0.0.1:{recorder.port}"
    reported = {"advertised.listeners": f"PLAINTEXT://{address}"}

    def run(*command: str | Path) -> None:
        subprocess.run([*map(str, command)], check=True, stdout=sys.stderr, timeout=120)

    clients: dict[str, Callable[[], object]] = {
        "java": lambda: run_java(address),
        "librdkafka": lambda: run_librdkafka(address),
        "aiokafka": lambda: run_aiokafka(address),
        "kafka-python": lambda: run_kafka_python(address),
        "franz-go": lambda: run(
            asked.go / "rec", "franz", address, f"{PREFIX}a", f"{PREFIX}b", "franz"
        ),
        "sarama": lambda: run(
            asked.go / "rec", "sarama", address, f"{PREFIX}a", f"{PREFIX}b", "sarama"
        ),
        "kafkajs": lambda: run("node", asked.js / "kafka.js", address, PREFIX, "kafkajs"),
    }
    with EmbeddedKafka(asked.data, port=port, properties=reported):
        admin = AdminClient({"bootstrap.servers": address})
        topics = [NewTopic(f"{PREFIX}{one}", 1, 1) for one in "ab"]
        for future in admin.create_topics(topics).values():
            future.result(30)
        for name, play in clients.items():
            recorder.client = name
            play()
            recorder.client = ""
            print(name, sum(1 for key in recorder.kept if key[0] == name), file=sys.stderr)
    KEPT.write_text("".join(f"{line}\n" for line in recorder.lines()))


if __name__ == "__main__":
    main()
