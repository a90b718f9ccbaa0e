"""Logs that are replaced or cut under groups, on real brokers: every new record is delivered."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from keylane.keyrange.hash import key_hash
from keylane.keyrange.key_split import even_split
from tests.integration.keylane_process import PATIENCE
from tests.integration.made_topics import make_topic
from tests.integration.share_wire import wait_until
from tests.integration.test_group_handover import log_ends, stable_offsets

pytestmark = pytest.mark.timeout(900)
LANES = 4
SPLIT = even_split(LANES)
OLD, NEW = 3_000, 4_000
WAIT_S = 90.0 * PATIENCE
QUIET_S = 5.0
CUT_LINE = "log was cut topic=orders partition=0"
STATE_LINE = "positions are of another log: going back group=g-orders topic=orders partition=0"


def key_of(lane: int) -> str:
    """A key that falls in a lane."""
    limits = SPLIT.key_range(lane)
    keys = (f"key-{number}" for number in range(1_000))
    return next(key for key in keys if limits.lo <= key_hash(key.encode()) <= limits.hi)


KEYS = [key_of(lane) for lane in range(LANES)]


def produce(bootstrap: str, label: str, lanes: Sequence[int], acks: str = "all") -> list[str]:
    """A record of each lane named, one after the other, in batches of some records."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "batch.size": 2_000,
            "acks": acks,
            "enable.idempotence": acks == "all",
            "max.in.flight.requests.per.connection": 1,  # offsets are the numbers in values
        }
    )
    values = [f"{label}:{number}" for number in range(len(lanes))]
    failed: list[str] = []
    for value, lane in zip(values, lanes, strict=True):
        producer.produce(
            "orders",
            key=KEYS[lane],
            value=value,
            partition=0,
            on_delivery=lambda error, _: failed.append(str(error)) if error else None,
        )
    assert producer.flush(WAIT_S) == 0 and not failed, failed[:3]
    return values


def is_at_end(bootstrap: str) -> bool:
    """Return whether Kafka's own offset of the group is at the end of the log."""
    return stable_offsets(bootstrap, "g-orders", "orders", 1) == log_ends(bootstrap, "orders", 1)


def is_committed(consumer: Consumer) -> bool:
    """Commit what was read; False: brokers that come and go do not take it now."""
    try:
        taken = consumer.commit(asynchronous=False)
    except KafkaException as error:
        # A commit that was taken, and whose answer was lost, leaves nothing to commit.
        return bool(error.args[0].code() == KafkaError._NO_OFFSET)
    return all(place.error is None for place in taken or ())


def consume(
    bootstrap: str,
    wanted: Collection[str],
    *,
    isolation: str = "read_committed",
    is_settled: Callable[[], bool] = lambda: True,
) -> list[str]:
    """A member that reads what there is for the group, and commits all of it; the values.

    It leaves when it has what is wanted, and some seconds have brought what would be too much.
    is_settled: what it waits for besides; a stable offset follows with the heartbeats of members.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g-orders",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "session.timeout.ms": 10_000,
        }
    )
    consumer.subscribe(["orders"])
    values: list[str] = []
    missing, is_due = set(wanted), False
    deadline_s = time.monotonic() + WAIT_S
    quiet_s = None
    while time.monotonic() < deadline_s:
        messages = [m for m in consumer.consume(500, 0.2) if m.error() is None]
        values += [(message.value() or b"").decode() for message in messages]
        missing.difference_update(values)
        is_due = (is_due or bool(messages)) and not is_committed(consumer)
        if missing or is_due:
            continue
        quiet_s = quiet_s or time.monotonic() + QUIET_S
        if time.monotonic() >= quiet_s and is_settled():
            break
    consumer.close()
    return values


def old_lanes() -> list[int]:
    """Lane 3 has its last record at 9; a scan leads its position to the end."""
    return [3] * 10 + [number % 3 for number in range(OLD - 10)]


def new_lanes(count: int) -> list[int]:
    """Lane 3 has records at the start, below the old log's end, and at the end."""
    rest = [number % 3 for number in range(count - 30)]
    return [3] * 10 + rest[: OLD // 2] + [3] * 10 + rest[OLD // 2 :] + [3] * 10


def owed(count: int) -> list[str]:
    """Values of the new log that a group must get that has committed all of the old one.

    As direct: a group that has committed an offset goes on there, and from the start where the log
    ends before it. Lane 3 has said 10; that its position was led on by a scan must cost it nothing.
    """
    lanes, ends = new_lanes(count), {}
    for offset, lane in enumerate(old_lanes()):
        ends[lane] = offset + 1
    return [
        f"new:{offset}"
        for offset, lane in enumerate(lanes)
        if ends[lane] > count or offset >= ends[lane]
    ]


def lose_log(broker: EmbeddedKafka, folder: Path) -> None:
    """The broker ends, its disk loses the partition, and it starts again."""
    broker.stop()
    lost = list(folder.glob("**/orders-0"))
    assert lost, "the broker keeps its partitions elsewhere"
    for path in lost:
        shutil.rmtree(path)
    broker.start()


@pytest.mark.parametrize(
    ("count", "isolation", "is_down"),
    [
        (NEW, "read_committed", True),
        pytest.param(2_000, "read_uncommitted", False, marks=pytest.mark.long),
        pytest.param(NEW, "read_committed", False, marks=pytest.mark.long),
        pytest.param(2_000, "read_uncommitted", True, marks=pytest.mark.long),
    ],
)
def test_a_log_that_begins_anew_is_read_from_its_start(
    own_broker, keylane, tmp_path, is_down, count, isolation
) -> None:
    """A lost disk under keylane, or while it is down; the new log is longer or shorter."""
    admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
    make_topic(admin, NewTopic("orders", 1, 1))
    proxy = keylane("orders=4", bootstrap=own_broker.bootstrap)
    at_end = partial(is_at_end, own_broker.bootstrap)
    old = produce(own_broker.bootstrap, "old", old_lanes())
    # Until a scan has led lane 3 to the end: that is what goes back later.
    assert sorted(consume(proxy.bootstrap, old, is_settled=at_end)) == sorted(old)

    if is_down:
        proxy.stop()
    lose_log(own_broker, tmp_path)
    if is_down:
        proxy.start()
    new = produce(own_broker.bootstrap, "new", new_lanes(count))
    seen = consume(proxy.bootstrap, owed(count), isolation=isolation)
    more = produce(own_broker.bootstrap, "more", [3, 2, 1, 0] * 5)
    last = consume(proxy.bootstrap, more, isolation=isolation, is_settled=at_end)

    missing = sorted(set(owed(count)) - set(seen))
    assert not missing, (
        f"{len(missing)} of {len(seen)} seen, log {log_ends(own_broker.bootstrap, 'orders', 1)}"
    )
    assert set(seen) <= set(new)
    assert max(Counter(seen).values()) == 1, "each record once"
    assert Counter(last) == Counter(more), "the next owner goes on where this one stood"
    proxy.wait_for_log(STATE_LINE)
    assert at_end()


def test_a_follower_that_lagged_leads(tmp_path, keylane) -> None:
    """Unclean election: what the old leader alone had is lost as direct, and no lane skips more."""
    with EmbeddedKafka(tmp_path / "kafka", node_count=3, heap_mb=384) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        first, second = (node.settings.node_id for node in cluster.nodes[1:])
        wanted = NewTopic(
            "orders",
            num_partitions=1,
            replica_assignment=[[first, second]],
            config={"unclean.leader.election.enable": "true"},
        )
        make_topic(admin, wanted)
        proxy = keylane("orders=4", bootstrap=cluster.bootstrap)
        kept = produce(cluster.bootstrap, "kept", [3] * 10 + [n % 3 for n in range(990)])
        cluster.nodes[2].kill()
        lost = produce(cluster.bootstrap, "lost", [n % 3 for n in range(1_000)], acks="1")
        seen = consume(proxy.bootstrap, kept + lost)
        cluster.nodes[1].kill()
        cluster.nodes[2].launch()
        cluster.nodes[2].await_ready(time.monotonic() + 120)

        # Beyond the old log's end, so that no offset is out of range.
        lanes = [3] * 10 + [n % 3 for n in range(1_480)] + [3] * 10
        new = produce(cluster.bootstrap, "new", lanes)
        of_lane_3 = [value for value, lane in zip(new, lanes, strict=True) if lane == 3]
        got = consume(proxy.bootstrap, {*of_lane_3, *new[1_000:]})

    assert Counter(seen) == Counter(kept + lost)
    assert set(of_lane_3) <= set(got), "its position had been led on into what was lost"
    assert set(new[1_000:]) <= set(got) and max(Counter(got).values()) == 1
    assert not set(got) & set(kept), "nothing committed comes again"
    wait_until(lambda: CUT_LINE in proxy.log or STATE_LINE in proxy.log, "a line of the cut")
