"""Stock Kafka Streams applications over lanes: counts, joins, a killed instance, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import yaml
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from keylane.cli.control_client import ControlTrust, ask_control, control_request
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.streams.app import Application
from tests.streams.joins import IN_STEP, STEP_MS, pairs_in_window, produce_sides
from tests.streams.output import StreamsOutput, Values

LANES = 8
KEYS = [f"key-{number}" for number in range(60)]
JOIN_ROUNDS = 20
RIGHT_FIRST_MS = 2 * STEP_MS * JOIN_ROUNDS
EXACTLY_ONCE: dict[str, Any] = {"processing_guarantee": "exactly_once_v2"}
JOINING: dict[str, Any] = {**IN_STEP, "main_consumer_session_timeout_ms": 45_000}
"""A thread that is held up for a whole session is put out, and its records come twice."""
RULES = [
    {"topic": "lanes8-*", "lanes": LANES},
    {"topic": "lanes4-*", "lanes": 4},
    {"topic": "murmur8-*", "lanes": LANES, "hash": "murmur2"},
    {"topic": "murmur4-*", "lanes": 4, "hash": "murmur2"},
]
GROUPS = [{"group": "allowed-*", "streams_mixed": "allow"}]
JoinBoth = Callable[..., tuple[Values, Values]]
OpenOutput = Callable[[str], StreamsOutput]


@pytest.fixture(scope="module")
def proxy(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeylaneProcess]:
    """The module's proxy, with lanes by the label of a topic."""
    environment = {
        "KEYLANE_BESIDE_OTHERS": "true",
        "KEYLANE_LANES": yaml.safe_dump(RULES, default_flow_style=True, width=9999),
        "KEYLANE_GROUPS": yaml.safe_dump(GROUPS, default_flow_style=True, width=9999),
    }
    log_path = tmp_path_factory.mktemp("streams") / "keylane.log"
    running = KeylaneProcess(kafka, (), log_path=log_path, environment=environment).start()
    yield running
    running.stop()


@pytest.fixture
def open_output(kafka: str) -> Iterator[OpenOutput]:
    """Factory of readers of topics with `LANES` partitions."""
    opened: list[StreamsOutput] = []

    def open_one(topic: str) -> StreamsOutput:
        opened.append(StreamsOutput(kafka, topic, partitions=LANES))
        return opened[-1]

    yield open_one
    for output in opened:
        output.close()


@pytest.fixture
def join_both(kafka, proxy, topic, open_output, tmp_path) -> JoinBoth:
    """Run an application through keylane, with settings, and one at the broker: what they make."""

    def run(
        over_lanes: tuple[str, list[str]],
        direct: tuple[str, list[str]],
        *,
        count: int = len(KEYS) * JOIN_ROUNDS,
        **settings: Any,
    ) -> tuple[Values, Values]:
        sides: Any = ((proxy.bootstrap, over_lanes, settings), (kafka, direct, {}))
        made = []
        with ExitStack() as stack:
            for source, (topology, inputs), own in sides:
                target = topic("out", partitions=LANES)
                app = Application(source, topology, inputs, target, tmp_path, **JOINING, **own)
                stack.enter_context(app).add()
                made.append(open_output(target))
            for output in made:
                output.wait_for(count)
                output.take(seconds=1)
        return made[0].values, made[1].values

    return run


@contextmanager
def load(kafka: str, topic: str) -> Iterator[list[str]]:
    """Some 600 records a second, numbered for each key, until the block ends."""
    values: list[str] = []
    stopping = threading.Event()

    def run() -> None:
        number = 0
        while not stopping.wait(0.1):
            values.extend(produce(kafka, topic, KEYS, 1, first=number))
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield values
    finally:
        stopping.set()
        thread.join()


def kill_one_under_load(
    kafka: str, app: Application, topic: str, output: StreamsOutput
) -> list[str]:
    """Start two instances of two threads, kill one with -9; return what was produced."""
    admin, group = AdminClient({"bootstrap.servers": kafka}), app.application_id

    def is_left_to_the_other() -> bool:
        found = admin.describe_consumer_groups([group])[group].result(30)
        return found.state is ConsumerGroupState.STABLE and len(found.members) == 2

    first, _ = app.add(2)
    with load(kafka, topic) as values:
        app.wait_until_running()
        output.wait_for(output.count + 1_000)
        first.kill()
        # The broker says so. The other instance may be rebalancing at the kill already, and its
        # states would show no second rebalance.
        output.wait(is_left_to_the_other, timeout_s=90, what="a group of the other instance")
        output.wait_for(output.count + 2_000)
    return values


def test_a_stateless_application_loses_nothing(kafka, proxy, topic, open_output, tmp_path) -> None:
    """One partition, eight lanes, kill -9: each value comes out, the values of a key in order."""
    name, target = topic("lanes8"), topic("out", partitions=LANES)
    output = open_output(target)

    with Application(proxy.bootstrap, "pass", [name], target, tmp_path) as app:
        values = kill_one_under_load(kafka, app, name, output)
        output.wait(
            lambda: set().union(*output.values.values()) >= set(values),
            timeout_s=90, what="all values",
        )  # fmt: skip

    for key, got in output.values.items():
        first_seen = [int(value.rsplit(":", 1)[1]) for value in dict.fromkeys(got)]
        assert first_seen == sorted(first_seen), f"{key} went back"


@pytest.mark.parametrize(
    "topology", [pytest.param("count", marks=pytest.mark.long), "count-rounds"]
)
def test_counts_are_exact(topology, kafka, proxy, topic, open_output, tmp_path) -> None:
    """Exactly once, kill -9 of one of two instances: each count of each key once, in order."""
    name, target = topic("lanes8"), topic("out", partitions=LANES)
    output = open_output(target)

    with Application(proxy.bootstrap, topology, [name], target, tmp_path, **EXACTLY_ONCE) as app:
        values = kill_one_under_load(kafka, app, name, output)
        output.wait_for(len(values))
        output.take(seconds=2)

    rounds = len(values) // len(KEYS)
    counted = KEYS if topology == "count" else map(str, range(rounds))
    each = rounds if topology == "count" else len(KEYS)
    assert output.values == {key: [str(n) for n in range(1, each + 1)] for key in counted}


@pytest.mark.long
def test_a_join_of_two_lane_topics(kafka, topic, join_both) -> None:
    """A windowed join equals that of the same application on topics of as many partitions."""
    lanes = [topic("lanes8"), topic("lanes8")]
    plain = [topic("plain", partitions=LANES), topic("plain", partitions=LANES)]
    produce_sides(kafka, [lanes[0], plain[0]], [lanes[1], plain[1]], KEYS, JOIN_ROUNDS)

    made, expected = join_both(
        ("join-window", lanes),
        ("join-window", plain),
        count=len(KEYS) * pairs_in_window(JOIN_ROUNDS),
    )

    assert made == expected


@pytest.mark.parametrize(
    ("label", "partitions"),
    [pytest.param("murmur8", 1, marks=pytest.mark.long), ("murmur4", 2)],
)
def test_a_join_of_murmur2_lanes_with_a_plain_topic(
    label, partitions, kafka, topic, join_both
) -> None:
    """A table join equals that of the same application on a topic of as many partitions."""
    lanes, plain = topic(label, partitions=partitions), topic("plain", partitions=LANES)
    table = topic("plain", partitions=LANES)
    produce_sides(kafka, [lanes, plain], [table], KEYS, JOIN_ROUNDS)

    made, expected = join_both(
        ("join-table", [lanes, table]),
        ("join-table", [plain, table]),
    )

    assert made == expected


@pytest.mark.parametrize(
    ("topology", "labels"),
    [("join-global", ("lanes8", "lanes8")), ("join-foreign", ("murmur8", "plain"))],
)
def test_joins_by_other_keys(topology, labels, kafka, proxy, topic, open_output, tmp_path) -> None:
    """A global table of lanes of xxh64, a foreign-key join of lanes of murmur2: all keys match."""
    names = [topic(label, partitions=LANES if label == "plain" else 1) for label in labels]
    target = topic("out", partitions=LANES)
    produce_sides(kafka, names[:1], names[1:], KEYS, JOIN_ROUNDS, ahead_ms=RIGHT_FIRST_MS)
    output = open_output(target)
    last = JOIN_ROUNDS - 1
    expected = dict.fromkeys(KEYS, f"left {last}+right {last}")

    def last_values() -> dict[str, str]:
        return {key: values[-1] for key, values in output.values.items()}

    with Application(proxy.bootstrap, topology, names, target, tmp_path) as app:
        app.add()
        output.wait(lambda: last_values() == expected, timeout_s=90, what="the last values")
        output.take(seconds=1)

    assert last_values() == expected


def test_the_cure_of_a_wrong_join(kafka, topic, join_both) -> None:
    """Lanes of xxh64 that are repartitioned join a plain topic as any other topic does."""
    lanes, plain = topic("lanes8"), topic("plain", partitions=LANES)
    table = topic("plain", partitions=LANES)
    produce_sides(kafka, [lanes, plain], [table], KEYS, JOIN_ROUNDS, ahead_ms=RIGHT_FIRST_MS)

    made, expected = join_both(
        ("join-repartitioned", [lanes, table]),
        ("join-table", [plain, table]),
    )

    assert made == expected


def test_what_a_refusal_prevents(kafka, topic, join_both) -> None:
    """Let in by `streams_mixed: allow`, a wrong join finds other values, and nothing fails."""
    lanes, plain = topic("lanes8"), topic("plain", partitions=LANES)
    table = topic("plain", partitions=LANES)
    produce_sides(kafka, [lanes, plain], [table], KEYS, JOIN_ROUNDS, ahead_ms=RIGHT_FIRST_MS)

    made, expected = join_both(
        ("join-table", [lanes, table]),
        ("join-table", [plain, table]),
        application_id=f"allowed-{table}",
    )

    assert set(expected["key-1"]) == {f"left {n}+right {JOIN_ROUNDS - 1}" for n in range(20)}
    missed = [key for key, values in made.items() if values[-1].endswith("+null")]
    assert len(missed) > len(KEYS) // 2


@pytest.mark.parametrize(
    ("topology", "labels"),
    [
        ("join-table", (("lanes8", 1), ("plain", 8))),
        pytest.param("join-window", (("lanes8", 1), ("lanes4", 2)), marks=pytest.mark.long),
        ("join-foreign", (("lanes8", 1), ("lanes8", 1))),
        ("merge", (("plain", 8), ("lanes8", 1))),
    ],
)
def test_a_wrong_join_is_refused(
    topology, labels, kafka, proxy, topic, open_output, tmp_path
) -> None:
    """Both instances end with the topics and the cure in their logs, and nothing comes out."""
    names = [topic(label, partitions=count) for label, count in labels]
    target = topic("out", partitions=LANES)
    produce_sides(kafka, names, [], KEYS, JOIN_ROUNDS)

    with Application(proxy.bootstrap, topology, names, target, tmp_path) as app:
        for instance in app.add(2):
            instance.wait_for_state("ERROR")
        group = app.application_id
        _, described = ask_control(
            control_request(proxy.control, f"/groups/{group}"), ControlTrust(), timeout_s=30
        )
        ends = ["\n".join((*each.printed, each.log)) for each in app.instances]
        output = open_output(target)
        output.take(seconds=2)

    lanes = next(name for name in names if name.startswith("lanes8"))
    refused = f"keylane refuses group {group}"
    for text in ("InconsistentGroupProtocolException", refused, *names, "`hash: murmur2`"):
        assert all(text in end for end in ends)
    assert lanes in described["refusal"]
    assert output.count == 0
    line = f"streams refused: a join would miss records group={group} "
    proxy.wait_for_log(line)
    assert proxy.log.count(line) == 1


def test_a_merge_that_is_allowed(kafka, proxy, topic, open_output, tmp_path) -> None:
    """With `streams_mixed: allow` a lane topic and a plain one are read by one subtopology."""
    names = [topic("lanes8"), topic("plain", partitions=LANES)]
    target = topic("out", partitions=LANES)
    produce_sides(kafka, names, [], KEYS, JOIN_ROUNDS)
    output = open_output(target)

    with Application(
        proxy.bootstrap, "merge", names, target, tmp_path, application_id=f"allowed-{target}"
    ) as app:
        app.add()
        output.wait_for(2 * len(KEYS) * JOIN_ROUNDS)

    assert set(output.values) == set(KEYS)


def test_the_streams_protocol_is_refused(kafka, proxy, topic, tmp_path) -> None:
    """`group.protocol=streams` (KIP-1071) ends with keylane's message at the application."""
    name, target = topic("lanes8"), topic("out", partitions=LANES)

    with Application(
        proxy.bootstrap, "pass", [name], target, tmp_path, group_protocol="streams"
    ) as app:
        (instance,) = app.add()
        instance.wait_for_state("ERROR")
        printed = "\n".join(instance.printed)

    assert "InvalidRequestException" in printed
    assert "set group.protocol=classic" in printed
