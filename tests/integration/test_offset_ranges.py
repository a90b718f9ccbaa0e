"""Offset ranges over a real broker: out-of-order commits of lanes, key ranges and partitions."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.keyrange.space import HASH_MAX, KeyRange, split_even
from tests.integration.harness import produce
from tests.integration.range_wire import Answer, RangeWire, Standing
from tests.integration.test_group_handover import stable_offsets

LOWER, UPPER = KeyRange(0, HASH_MAX // 2), KeyRange(HASH_MAX // 2 + 1, HASH_MAX)
KEYS = [f"key-{number}" for number in range(20)]
STARTED = ((45, 47), (50, 50))
NOT_ALLOWED, TOO_OLD, MAX_REACHED = 88, 91, 92
INVALID_REQUEST, REBALANCE_IN_PROGRESS = 42, 27


@pytest.fixture
def group() -> str:
    return f"ranges-{uuid.uuid4()}"


def filled(kafka, topic) -> str:
    """A topic of one partition and a hundred records: ranges are of what is in a log."""
    name: str = topic("plain", partitions=1)
    produce(kafka, name, KEYS, 5)
    return name


def kafka_offset(kafka, group: str, topic: str, partition: int = 0) -> int:
    """Kafka's own committed offset of the group, asked of the broker directly."""
    (found,) = stable_offsets(kafka, group, topic, 1 + partition)[partition:]
    return int(found)


def start(wire: RangeWire, group: str, topic: str) -> None:
    """Stable offset 42, with [45-47] and [50-50] above it."""
    assert wire.commit(group, topic, 0, offset=43, key_ranges=()).code == 0
    assert wire.commit(group, topic, 0, STARTED) == Answer(0, 0, 42)


@pytest.mark.parametrize(
    ("commit", "answer", "after"),
    [
        pytest.param([(48, 49)], Answer(0, 0, 42), ((45, 50),), id="merged"),
        pytest.param([(43, 44)], Answer(0, 0, 47), ((50, 50),), id="advanced"),
        pytest.param([(48, 49), (43, 44)], Answer(0, 0, 50), (), id="both"),
        pytest.param([(44, 44)], Answer(0, 0, 42), ((44, 47), (50, 50)), id="touching"),
        pytest.param([(10, 12)], Answer(0, TOO_OLD, 42), STARTED, id="too old"),
        pytest.param([(45, 47)], Answer(0, 0, 42), STARTED, id="again"),
    ],
)
def test_the_worked_examples_of_individual_commits(
    kafka, keylane, topic, group, commit, answer, after
) -> None:
    """S=42 with [45-47] and [50-50]: what each commit makes of it, at keylane and at Kafka."""
    name = filled(kafka, topic)
    proxy = keylane()
    with RangeWire(proxy.bootstrap) as wire:
        start(wire, group, name)

        assert wire.commit(group, name, 0, commit) == answer

        stable = answer.stable_offset
        assert stable is not None
        assert wire.standing(group, name, 0) == Standing(stable + 1, after, stable)
    assert kafka_offset(kafka, group, name) == stable + 1
    if commit == [(45, 47)]:
        proxy.wait_for_log("offset ranges were committed before")


def test_ranges_outlive_the_proxy(kafka, keylane, topic, group) -> None:
    """kill -9 and a new start: S=40 with [43-45] and [48-49]; the rest of a poll closes all."""
    name = filled(kafka, topic)
    proxy = keylane()
    with RangeWire(proxy.bootstrap) as wire:
        assert wire.commit(group, name, 0, offset=41, key_ranges=()).code == 0
        assert wire.commit(group, name, 0, [(43, 45), (48, 49)]).stable_offset == 40
    proxy.kill()
    proxy.start()
    with RangeWire(proxy.bootstrap) as wire:
        assert wire.standing(group, name, 0) == Standing(41, ((43, 45), (48, 49)), 40)
        assert wire.commit(group, name, 0, [(41, 42), (46, 47), (50, 50)]).stable_offset == 50
        assert wire.standing(group, name, 0) == Standing(51, (), 50)
    assert kafka_offset(kafka, group, name) == 51


def test_ranges_of_a_lane_are_of_its_keys(kafka, keylane, topic, group) -> None:
    """Two lanes of a partition: one is done to the end out of order, the other not at all."""
    name = topic("orders", partitions=1)
    produce(kafka, name, KEYS, 5)
    proxy = keylane(f"{name}=2")
    with RangeWire(proxy.bootstrap) as wire:
        assert wire.commit(group, name, 1, [(60, 99)]) == Answer(0, 0, -1)
        assert wire.standing(group, name, 1).ranges == ((60, 99),)
        assert wire.commit(group, name, 1, [(0, 59)]).stable_offset == -1
        assert wire.standing(group, name, 1) == Standing(100, (), -1)
        assert wire.standing(group, name, 0).offset == -1
        # The same keys by their range, under the broker's partition.
        assert wire.standing(group, name, 0, [UPPER]).offset == 100
        assert wire.commit(group, name, 0, [(0, 49)], key_ranges=[LOWER]).stable_offset == 49
        assert wire.standing(group, name, 0).offset == 50
    assert kafka_offset(kafka, group, name) == 50


def test_more_ranges_than_allowed_are_refused(kafka, keylane, topic, group) -> None:
    """At most ten: the eleventh gap is a rebalance to stock clients, and 92 by its own number."""
    name = filled(kafka, topic)
    proxy = keylane(args=["--set", "individual_commits_max=10"])
    with RangeWire(proxy.bootstrap) as wire:
        assert wire.commit(group, name, 0, offset=0, key_ranges=()).code == 0
        gaps = [(2 * number + 1, 2 * number + 1) for number in range(11)]
        assert wire.commit(group, name, 0, gaps[:10]).code == 0
        refused = wire.commit(group, name, 0, gaps[10:])
        assert (refused.code, refused.draft_error) == (REBALANCE_IN_PROGRESS, MAX_REACHED)
        assert wire.standing(group, name, 0).ranges == tuple(gaps[:10])
        assert wire.commit(group, name, 0, [(0, 0)]).stable_offset == 1
        assert wire.commit(group, name, 0, gaps[10:]).code == 0


def test_ranges_are_refused_while_the_switch_is_off(kafka, keylane, topic, group) -> None:
    """A plain commit works, a commit of ranges gets INVALID_REQUEST and 88."""
    name = filled(kafka, topic)
    proxy = keylane(args=["--set", "accept_individual_commit=false"])
    with RangeWire(proxy.bootstrap) as wire:
        assert wire.commit(group, name, 0, offset=5).code == 0
        refused = wire.commit(group, name, 0, [(7, 8)])
    assert (refused.code, refused.draft_error) == (INVALID_REQUEST, NOT_ALLOWED)


def test_an_offset_beside_ranges_is_ignored_or_refused(kafka, keylane, topic, group) -> None:
    """By default it is ignored; with strict_offset_ranges it has to be -1."""
    name = filled(kafka, topic)
    with RangeWire(keylane().bootstrap) as wire:
        assert wire.commit(group, name, 0, [(0, 4)], offset=99) == Answer(0, 0, 4)
    strict = keylane(args=["--set", "strict_offset_ranges=true"])
    with RangeWire(strict.bootstrap) as wire:
        assert wire.commit(group, name, 0, [(5, 6)], offset=99).code == INVALID_REQUEST
        assert wire.commit(group, name, 0, [(5, 6)]) == Answer(0, 0, 6)


def test_ranges_leave_a_group_that_is_reset(kafka, keylane, topic, group) -> None:
    """An admin's reset at the broker takes all ranges above it along."""
    name = filled(kafka, topic)
    proxy = keylane()
    with RangeWire(proxy.bootstrap) as wire:
        start(wire, group, name)
        admin = AdminClient({"bootstrap.servers": kafka})
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0, 20)])
        for future in admin.alter_consumer_group_offsets([wanted]).values():
            future.result()
        assert wire.standing(group, name, 0) == Standing(20, (), 19)


def test_the_feature_is_announced(keylane) -> None:
    """ApiVersions names it, once, beside the broker's own."""
    with RangeWire(keylane().bootstrap) as wire:
        assert wire.features()["keylane.ranges"] == (1, 1)


def test_ranges_are_described(kafka, keylane, topic, group) -> None:
    """`keylane describe --ranges` and GET /groups: the stable offset, and what is done above it."""
    name: str = topic("orders", partitions=1)
    produce(kafka, name, KEYS, 5)
    proxy = keylane(f"{name}=2")
    with RangeWire(proxy.bootstrap) as wire:
        assert wire.commit(group, name, 0, [(0, 9), (12, 13)]).code == 0
        assert wire.commit(group, name, 1, [(60, 99)]).code == 0
        assert wire.commit(group, name, 0, [(20, 22)], key_ranges=()).code == 0
    command = [sys.executable, "-m", "keylane", "describe", "--control", proxy.control]
    shown = subprocess.run(
        [*command, "--group", group, "--ranges"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert shown[0] == f"group {group}: Empty, 3 partitions or key ranges"
    assert shown[2].split() == ["TOPIC", "PARTITION", "STABLE-OFFSET", "KEYS", "DONE-ABOVE"]
    lower, upper = split_even(2)
    assert sorted(line.split()[1:] for line in shown[3:]) == [
        ["0", "-1", f"{lower.lo:016x}-{lower.hi:016x}", "12-13"],
        ["0", "-1", f"{upper.lo:016x}-{upper.hi:016x}", "60-99"],
        ["0", "-1", "all", "20-22"],
    ]
