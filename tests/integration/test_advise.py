"""`keylane advise` at a real broker: its figures are true, and it touches nothing."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.cli.main import main
from keylane.demo.orders import order_key
from keylane.demo.producer import OrderProducer
from keylane.embedded.ports import find_free_port
from keylane.keyrange.hash import key_hash
from tests.integration.harness import Group
from tests.integration.secured import PASSWORDS

CUSTOMERS: Final = 500
ORDERS: Final = 20_000
MEMBERS, LANES = 8, 16
TOLERANCE: Final = 0.15
SOON: Final = {"KEYLANE_LOAD_REBALANCE_INTERVAL_S": "20"}
"""Instead of ten minutes: load is weighed after 2 s."""


class Done(NamedTuple):
    """The end of a command."""

    code: int
    stdout: str
    stderr: str


def run_advise(bootstrap: str, topic: str, *args: str) -> Done:
    """Run the command, with a short watch."""
    command = ["advise", "--bootstrap", bootstrap, "--topic", topic, "--watch", "0.5", *args]
    with redirect_stdout(StringIO()) as stdout, redirect_stderr(StringIO()) as stderr:
        code = main(command)
    return Done(code, stdout.getvalue(), stderr.getvalue())


def advise(bootstrap: str, topic: str, *args: str) -> dict[str, Any]:
    """The document of an advice that is given."""
    done = run_advise(bootstrap, topic, *args, "-o", "json")
    assert (done.code, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refusal(bootstrap: str, topic: str, *args: str) -> str:
    """The line of an advice that is not given."""
    done = run_advise(bootstrap, topic, *args)
    assert (done.code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


@contextmanager
def orders_coming(bootstrap: str, topic: str, rate_per_s: float) -> Iterator[OrderProducer]:
    """The demo's producer, which writes until the block ends."""
    producer = OrderProducer(
        bootstrap=bootstrap, topic=topic, rate_per_s=rate_per_s, customers=CUSTOMERS
    )
    producer.start()
    try:
        yield producer
    finally:
        producer.stop()
        while not producer.finished:
            time.sleep(0.05)  # its last records are on the way, and it has no event for them
    assert producer.error_count == 0


def fill(bootstrap: str, topic: str, keys: list[bytes | None]) -> None:
    """Produce a record for each key."""
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    for number, key in enumerate(keys):
        producer.produce(topic, b"value %d" % number, key)
        producer.poll(0)
    assert producer.flush(60) == 0


def zipf_orders() -> list[bytes | None]:
    """Keys as the demo's are, by their counts: the customer with rank n has n^-0.8 of the first."""
    weights = [(rank + 1) ** -0.8 for rank in range(CUSTOMERS)]
    counts = [max(1, round(ORDERS * weight / sum(weights))) for weight in weights]
    keys: list[bytes | None] = []
    for customer, count in enumerate(counts):
        keys += [order_key(customer)] * count
    random.Random(1).shuffle(keys)
    return keys


def test_figures_are_those_of_the_records(kafka, topic) -> None:
    """Read whole, every count is exact; a tenth of it is near, and says how near."""
    name = topic("orders", partitions=2)
    keys = zipf_orders()
    fill(kafka, name, keys)
    counts = Counter(keys)

    whole = advise(kafka, name, "--members", "8", "--lanes", "16", "--work", "10ms")
    part = advise(kafka, name, "--members", "8", "--lanes", "16", "--sample", "2000")

    hottest, count = counts.most_common(1)[0]
    assert whole["sample"]["records"] == whole["topic"]["records"] == len(keys)
    assert whole["keys"]["distinct"] == CUSTOMERS
    assert whole["keys"]["keyless_share"] == 0
    assert whole["keys"]["hot"][0]["key_hash"] == str(key_hash(hottest or b""))
    assert whole["keys"]["hottest_share"] == pytest.approx(count / len(keys), abs=1e-6)
    assert whole["topic"]["replication"] == 1
    assert whole["topic"]["stored_bytes"] < whole["topic"]["record_bytes"] + 20
    assert whole["rates"]["lanes_per_s"] == pytest.approx(
        100 * whole["speedup"]["parallel"], rel=0.001
    )
    assert whole["verdict"] == "helps"
    assert 2_000 <= part["sample"]["records"] < 2_100
    assert part["keys"]["distinct"] == pytest.approx(CUSTOMERS, rel=0.2)
    low, high = part["speedup"]["interval"]
    assert low <= part["speedup"]["parallel"] <= high
    assert part["speedup"]["gain"] == pytest.approx(whole["speedup"]["gain"], rel=TOLERANCE)


@pytest.mark.timeout(420)
def test_the_demos_speedup_is_what_was_advised(kafka, keylane, topic) -> None:
    """Eight stock members on the demo's orders: by counts of records, within 15 %."""
    name = topic("advised", partitions=2)
    proxy = keylane(f"advised-*={LANES}", environment=SOON)

    with Group(proxy.bootstrap, name, f"g-{name}", session_timeout_ms=30_000) as group:
        for number in range(MEMBERS):
            group.add(("aiokafka", "confluent", "kafka-python")[number % 3])
        group.wait_for_lanes(2 * LANES, timeout_s=120)
        with orders_coming(kafka, name, 1_000):
            group.wait(lambda seen: len(seen.sightings) >= ORDERS / 2, timeout_s=120, what="orders")
            # A broker may stand still for longer than the short watch, and nothing comes then.
            watched = ("--sample", "5000", "--watch", "5")
            advised = advise(
                kafka, name, "--members", str(MEMBERS), "--lanes", str(LANES), *watched
            )
            group.wait(
                lambda seen: (
                    sum(map(len, seen.lanes.values())) == 2 * LANES
                    and speedup_of(seen) == pytest.approx(advised["speedup"]["gain"], rel=TOLERANCE)
                ),
                timeout_s=180,
                what=f"a speed-up near {advised['speedup']['gain']}",
            )
            seen = group.seen
            assert len(seen.lanes) == MEMBERS
    assert advised["topic"]["produced_per_s"] > 0


def speedup_of(seen: Any) -> float:
    """Records of the fullest partition, in times those on the busiest member's lanes."""
    lanes = Counter(lane for lane, _ in {(one.lane, one.offset) for one in seen.sightings})
    partitions = Counter[int]()
    for lane, count in lanes.items():
        partitions[lane % 2] += count
    busiest = max(sum(lanes[lane] for lane in owned) for owned in seen.lanes.values())
    return max(partitions.values()) / busiest


def test_a_group_is_looked_at_and_not_touched(kafka, admin, topic) -> None:
    """Its lag and members are said; its offsets, members and the cluster's groups stay."""
    name = topic("orders", partitions=2)
    fill(kafka, name, [b"key-%d" % (n % 100) for n in range(1_000)])
    group = f"g-{name}"
    settings = {"bootstrap.servers": kafka, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([name])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.commit(
        offsets=[TopicPartition(name, part, 100) for part in (0, 1)], asynchronous=False
    )
    before, names = groups_of(admin, group), names_of_groups(admin)

    found = advise(kafka, name, "--group", group)

    assert groups_of(admin, group) == before
    assert names_of_groups(admin) <= names
    assert found["group"]["members"] == 1
    assert found["group"]["lag"] == 800
    assert found["group"]["consumed_per_s"] == 0
    consumer.close()


def names_of_groups(admin: AdminClient) -> set[str]:
    """Names of all groups of the cluster."""
    return {each.group_id for each in admin.list_consumer_groups().result(30).valid}


def groups_of(admin: AdminClient, group: str) -> tuple[Any, ...]:
    """State, members and offsets of a group, and names of groups that advise would have."""
    described = admin.describe_consumer_groups([group])[group].result(30)
    asked = [ConsumerGroupTopicPartitions(group)]
    offsets = admin.list_consumer_group_offsets(asked)[group].result(30).topic_partitions or []
    members = sorted(member.member_id for member in described.members)
    mine = {
        name for name in names_of_groups(admin) if "advise" in name and not name.startswith("g-")
    }
    return described.state, members, sorted((p.partition, p.offset) for p in offsets), mine


def test_a_member_of_the_consumer_protocol_counts(kafka, topic) -> None:
    """The classic description does not know such a group; the other one does."""
    name = topic("orders", partitions=2)
    fill(kafka, name, [b"key-%d" % (n % 100) for n in range(200)])
    settings = {"bootstrap.servers": kafka, "group.id": f"g-{name}", "group.protocol": "consumer"}
    consumer = Consumer(settings)
    consumer.subscribe([name])
    while not consumer.assignment():
        consumer.poll(0.1)

    found = advise(kafka, name, "--group", f"g-{name}")

    assert found["group"]["members"] == 1
    consumer.close()


def test_topics_that_keylane_is_wrong_for_are_named(kafka, topic) -> None:
    """Without keys, and with one hot key."""
    keyless, hot = topic("keyless", partitions=2), topic("hot", partitions=2)
    fill(kafka, keyless, [None] * 500)
    fill(kafka, hot, [b"one" if n % 10 else b"key-%d" % n for n in range(2_000)])

    found = [advise(kafka, name) for name in (keyless, hot)]

    assert [each["verdict"] for each in found] == ["no-keys", "hot-key"]
    assert found[1]["keys"]["hottest_share"] == pytest.approx(0.9, abs=0.001)
    assert found[1]["speedup"]["ceiling"] == pytest.approx(1 / 0.9, abs=0.01)


def test_compaction_and_aborted_transactions_are_seen(kafka, topic) -> None:
    """The policy is asked for; records of aborted transactions are not sampled."""
    name = topic("orders", partitions=1, config={"cleanup.policy": "compact"})
    fill(kafka, name, [b"key-%d" % (n % 50) for n in range(500)])
    settings = {"bootstrap.servers": kafka, "transactional.id": f"t-{name}"}
    producer = Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(500):
        producer.produce(name, b"aborted", b"ghost-%d" % (number % 50))
    producer.flush()
    producer.abort_transaction()

    found = advise(kafka, name)

    assert found["topic"]["is_compacted"] is True
    assert found["keys"]["distinct"] == 50
    assert found["sample"]["records"] == 500


def test_forms_and_a_plot(kafka, topic, tmp_path: Path) -> None:
    """YAML has what JSON has; the picture is drawn beside the text."""
    name = topic("orders", partitions=2)
    fill(kafka, name, [b"key-%d" % (n % 100) for n in range(500)])

    as_yaml = run_advise(kafka, name, "-o", "yaml")
    with_plot = run_advise(kafka, name, "--plot", str(tmp_path / "speed.svg"))

    assert yaml.safe_load(as_yaml.stdout).keys() == advise(kafka, name).keys()
    assert (tmp_path / "speed.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert len(with_plot.stdout.splitlines()) == 11
    assert "key-" not in with_plot.stdout


def test_each_failure_is_one_line_with_its_cure(kafka, keylane, topic) -> None:
    """Topic, group, broker and record that are not there; keylane in the place of brokers."""
    empty, lanes = topic("empty"), topic("lanes", partitions=1)
    fill(kafka, lanes, [b"key"] * 10)
    nowhere = f"127.0.0.1:{find_free_port()}"
    proxy = keylane("lanes-*=4")

    found = [
        refusal(kafka, "no-such-topic"),
        refusal(kafka, lanes, "--group", "no-such-group"),
        refusal(kafka, empty),
        refusal(kafka, lanes, "--since", "1us"),
        refusal(nowhere, lanes),
        refusal(proxy.bootstrap, lanes),
    ]

    start = "keylane advise: "
    for line, words in zip(
        found,
        [
            "topic no-such-topic: no broker knows it; check the name: kafka-topics --list",
            "group no-such-group: the brokers know no such group; kafka-consumer-groups --list",
            f"topic {empty}: it is empty; produce records first",
            f"topic {lanes}: no record is that new; give --since more time",
            f"no bootstrap server answers: {nowhere}",
            "--bootstrap is keylane, which shows lanes: name the brokers behind it",
        ],
        strict=True,
    ):
        assert line.startswith(start + words)


def test_login_and_rights_are_those_of_the_configuration(stage, request, tmp_path: Path) -> None:
    """TLS and a login from keylane's own file; a right that lacks is named with its ACL."""
    name, values = stage.topic(request.node.name)

    def config_of(user: str) -> list[str]:
        password = tmp_path / f"{user}-password"
        password.write_text(PASSWORDS[user])
        path = tmp_path / f"{user}.yaml"
        text = (
            f"upstream_tls: true\nupstream_ca: {stage.ca}\nlogin_mechanism: SCRAM-SHA-256\n"
            f"login_username: {user}\nlogin_password_file: {password}\n"
        )
        path.write_text(text, encoding="utf-8")
        return ["--config", str(path)]

    found = advise(stage.direct, name, *config_of("dave"))
    no_read = refusal(stage.direct, name, *config_of("bob"))
    no_group = refusal(stage.direct, name, *config_of("dave"), "--group", "billing")

    assert found["topic"]["records"] == len(values)
    assert f"--operation Read --topic {name}" in no_read
    assert "--operation Describe --group billing" in no_group
    assert PASSWORDS["dave"] not in os.linesep.join([no_read, no_group])
