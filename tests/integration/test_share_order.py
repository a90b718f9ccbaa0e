"""Stock share consumers of a group in key order: no order break, no key at two members, no loss."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.nodes import Nodes
from tests.integration.share_stage import RULES, Scene, ShareStage
from tests.integration.share_wire import wait_until
from tests.integration.test_share_letters import left_by_compaction
from tests.share.ledger import Judgement, judge
from tests.share.member import Event, LineProgram, Workers, parse_event

pytestmark = pytest.mark.timeout(600)  # kernels may have to be compiled first
LIMIT = 10
"""Deliveries of a record: a kill of keylane costs those that it holds one."""


def produce(
    stage: ShareStage, shown: Scene, keys: int, rounds: int, *, codec: str = "lz4",
    transactional: bool = False, partitions: int = 1,
) -> set[tuple[int, int]]:  # fmt: skip
    """Produce rounds of all keys; return the places of committed records."""
    config: dict[str, str | int] = {
        "bootstrap.servers": stage.broker.bootstrap, "compression.type": codec, "linger.ms": 5,
    }  # fmt: skip
    if transactional:
        config["transactional.id"] = shown.group
    producer = Producer(config)
    places: set[tuple[int, int]] = set()

    def note(_error: object, message: Any) -> None:
        places.add((message.partition(), message.offset()))

    if transactional:
        producer.init_transactions(30)
    for number in range(rounds):
        is_aborted = transactional and number % 3 == 1
        if transactional:
            producer.begin_transaction()
        for key in range(keys):
            producer.produce(
                shown.topic, f"{key}:{number}", f"k{key}", partition=key % partitions,
                on_delivery=None if is_aborted else note,
            )  # fmt: skip
        if transactional:
            producer.flush(30)
            (producer.abort_transaction if is_aborted else producer.commit_transaction)(30)
    assert producer.flush(60) == 0
    return places


class Crew:
    """Processes of members, and what all of them report."""

    def __init__(self, bootstrap: str, shown: Scene) -> None:
        self._bootstrap, self._shown = bootstrap, shown
        self._stack = ExitStack()
        self.programs: list[LineProgram] = []

    def java(self, name: str, members: int, **options: object) -> Workers:
        """Start a JVM with members."""
        chosen = {"name": name, "seed": len(self.programs), **options}
        workers = Workers(
            self._bootstrap, self._shown.group, self._shown.topic, members=members, options=chosen
        )
        self.programs.append(self._stack.enter_context(workers))
        return workers

    def librdkafka(self, name: str, work_ms: int) -> None:
        """Start a librdkafka member."""
        words = (self._bootstrap, self._shown.group, self._shown.topic, name, str(work_ms))
        command = [sys.executable, "-m", "tests.share.librdkafka_member", *words]
        self.programs.append(self._stack.enter_context(LineProgram(command)))

    @property
    def events(self) -> Iterable[Event]:
        """Return the events of all members by now."""
        lines = chain.from_iterable(program.lines for program in self.programs)
        return [parse_event(line) for line in lines]

    def finished(self) -> int:
        """Return how many ends members have reported."""
        return sum(line.startswith("E ") for program in self.programs for line in program.lines)

    def wait_for(self, ends: int, *, timeout_s: float = 90.0) -> None:
        """Wait until members have reported so many ends."""
        wait_until(lambda: self.finished() >= ends, f"{ends} ends", timeout_s=timeout_s)

    def close(self) -> None:
        """Have all members leave."""
        self._stack.close()


@contextmanager
def crew(shown: Scene, bootstrap: str = "") -> Iterator[Crew]:
    made = Crew(bootstrap or shown.stage.bootstrap, shown)
    try:
        yield made
    finally:
        made.close()


def judged(
    made: Crew, shown: Scene, places: set[tuple[int, int]], kept: set[tuple[int, int]] | None = None
) -> Judgement:
    """Wait until the broker has all as finished, have the members leave, and judge them.

    kept: places that compaction does not remove; None: it removes none.
    """
    partitions = {partition for partition, _ in places}

    def is_done() -> bool:
        return all(shown.offsets(partition)[1] == 0 for partition in partitions)

    wait_until(is_done, "the end of all records", timeout_s=120)
    made.close()
    found = judge(made.events, delivery_limit=LIMIT)
    errors = [event.text for event in made.events if event.kind == "X"]
    print(found, "errors", errors[:5])
    assert found.breaks == []
    assert found.unfinished == set()
    assert found.finished.keys() >= (places if kept is None else kept)
    assert found.finished.keys() <= places
    return found


EXPLICIT = {
    "work_ms": 2, "max_poll": 10, "mode": "record_limit", "ack": "explicit",
    "release": 0.03, "reject": 0.01,
}  # fmt: skip


@pytest.mark.long
def test_java_members_of_two_processes_one_of_which_is_killed(scene, share_stage) -> None:
    """Eight explicit members that release and reject, four of them killed: all finish in order."""
    shown = scene(share_delivery_count_limit=LIMIT)
    places = produce(share_stage, shown, 50, 60)

    with crew(shown) as made:
        doomed = made.java("a", 4, **EXPLICIT)
        made.java("b", 4, **EXPLICIT)
        made.wait_for(len(places) // 2)
        doomed.kill()
        found = judged(made, shown, places)

    assert found.released > 0
    assert max(found.deliveries) < LIMIT


def test_java_and_librdkafka_members_side_by_side(scene, share_stage) -> None:
    """Implicit Java members and librdkafka's of v1 share the keys of one group in order."""
    shown = scene(share_delivery_count_limit=LIMIT)
    places = produce(share_stage, shown, 60, 20)

    with crew(shown) as made:
        made.librdkafka("c0", 2)
        made.librdkafka("c1", 2)
        made.java("a", 3, work_ms=2, max_poll=20)
        wait_until(lambda: len({each.member for each in made.events}) == 5, "five members")

        def are_all_at_work() -> bool:
            # Some may join when others have finished all that was there: there is more for them.
            places.update(produce(share_stage, shown, 60, 1))
            return {each.member[0] for each in made.events if each.kind == "E"} == {"a", "c"}

        wait_until(are_all_at_work, "an end at each kind of members")
        places |= produce(share_stage, shown, 60, 20)
        found = judged(made, shown, places)

    assert {name[0] for name in found.finished.values()} == {"a", "c"}
    assert found.deliveries == {1: len(places)}


@pytest.mark.long
def test_java_members_that_renew(scene, share_stage) -> None:
    """Members that renew each lock half-way get each record once, in order."""
    shown = scene(share_delivery_count_limit=LIMIT)
    places = produce(share_stage, shown, 20, 10)

    with crew(shown) as made:
        made.java("a", 3, ack="renew", work_ms=4, max_poll=5, mode="record_limit")
        found = judged(made, shown, places)

    assert found.deliveries == {1: len(places)}
    assert sum(event.kind == "R" for event in made.events) == len(places)


COMPACTED: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
}
VARIANTS: Mapping[str, tuple[int, Mapping[str, object], Mapping[str, Any]]] = {
    "32 members": (16, {}, {}),
    "zstd": (4, {}, {"codec": "zstd"}),
    "no codec": (4, {}, {"codec": "none"}),
    "read_committed": (4, {}, {"transactional": True}),
    "four partitions": (4, {}, {"partitions": 4}),
    "compacted": (4, {}, {"config": COMPACTED}),
    "sync": (4, {"ack": "sync"}, {}),
    "batch_optimized": (4, {"mode": "batch_optimized", "max_poll": 100}, {}),
}
"""Members of each process, their options, and those of the log."""


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_java_members_in_other_circumstances(variant, scene, share_stage) -> None:
    """Two JVMs, one of them killed: order holds with other sizes, codecs, modes and logs."""
    members, options, found = VARIANTS[variant]
    log = dict(found)
    shown = scene(
        partitions=log.get("partitions", 1),
        config=log.pop("config", None),
        share_delivery_count_limit=LIMIT,
        share_isolation_level="read_committed",
    )
    places, kept = produce(share_stage, shown, 200, 60, **log), None
    if variant == "compacted":
        left = wait_until(lambda: left_by_compaction(share_stage, shown), "compaction")
        places = {(0, offset) for offset in left}
        kept = {place for place in places if place[1] >= 59 * 200}

    with crew(shown) as made:
        doomed = made.java("a", members, **{**EXPLICIT, **options})
        made.java("b", members, **{**EXPLICIT, **options})
        made.wait_for(len(kept or places) // 2)
        doomed.kill()
        judged(made, shown, places, kept)


def bounce_keylane(stage: ShareStage) -> None:
    stage.proxy.kill()
    stage.proxy.start()


def bounce_broker(stage: ShareStage) -> None:
    stage.broker.kill()
    stage.broker.start()


@pytest.mark.long
@pytest.mark.parametrize("bounce", [bounce_keylane, bounce_broker])
def test_java_members_over_kills_of_keylane_and_of_the_broker(
    bounce: Callable[[ShareStage], None], scene, share_stage
) -> None:
    """Twice killed under load: all records finish, each key in its order."""
    shown = scene(share_delivery_count_limit=LIMIT)
    places = produce(share_stage, shown, 100, 100)

    with crew(shown) as made:
        for name in ("a", "b"):
            made.java(name, 4, **EXPLICIT)
        for part in (3, 6):
            made.wait_for(len(places) * part // 10)
            bounce(share_stage)
        judged(made, shown, places)


@pytest.mark.long
def test_java_members_at_two_nodes_one_of_which_is_killed(
    scene, share_stage, tmp_path: Path
) -> None:
    """Four partitions at two nodes: one is killed and comes back, and all finishes in order."""
    partitions = 4
    shown = scene(partitions=partitions, share_delivery_count_limit=LIMIT)
    places = produce(share_stage, shown, 400, 40, partitions=partitions)
    args = ("--set", f"share_groups={json.dumps(RULES)}", "--set", "node_session_timeout_ms=6000")

    share_stage.proxy.stop()  # it has no number, and would be one node too many
    try:
        with (
            Nodes(share_stage.broker.bootstrap, (), folder=tmp_path, count=2, args=args) as nodes,
            crew(shown, nodes.bootstrap) as made,
        ):
            for name in ("a", "b"):
                made.java(name, 4, **EXPLICIT)
            made.wait_for(len(places) // 4)
            nodes[1].kill()
            made.wait_for(len(places) // 2)
            nodes[1].start()
            judged(made, shown, places)
            logs = nodes[0].log + nodes[1].log
        assert logs.count("share session is opened again") <= 2 * partitions
    finally:
        share_stage.proxy.start()
