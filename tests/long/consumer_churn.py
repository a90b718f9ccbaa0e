"""A large consumer group (KIP-848) on lanes while members, nodes and the broker come and go.

`python -m tests.long.consumer_churn --java 8 --confluent 8 --nodes 2 --rounds 3`: two partitions of
16 lanes under a steady flow. First a quiet minute, which gives the longest pause that members have
anyway. Then in each round: two members join, two leave, two are killed with -9, a node is killed
and started, the broker is killed and started. In the end every record must have been seen, none
after its commit, each key in order, and no lane at two members at once, by the members' own
reports. Printed for each step: the time until all lanes have members again, and the longest pause
of the members and of lanes that stayed, beside those of the quiet minute. Exit code 1 after a
breach.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.fast_java import start_java_fast
from tests.integration.flow import steady_flow
from tests.integration.harness import Group, reported_at_s
from tests.integration.made_topics import make_topic
from tests.integration.nodes import Nodes

TOPIC: Final = "orders"
ELSEWHERE: Final = "invoices"
"""Topic beside, for members whose start costs as much and moves no lane of `TOPIC`."""
PARTITIONS, LANES = 2, 16
BROKER: Final = {
    "log.retention.ms": "-1",
    "group.consumer.min.session.timeout.ms": "20000",
    "group.consumer.session.timeout.ms": "20000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "5000",
}
STEP_S: Final = 14.0
"""Time after an event in which pauses are counted."""
SETTLE_S: Final = 180.0
LIBRARIES: Final = ("confluent", "java")
"""Apart: Java's consumer of 4.3 pauses for seconds now and then, directly at a broker, too."""


class ChurnGroup(Group):
    """A group whose sightings have times."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.times: dict[str, list[float]] = {}
        """By member."""
        self.lane_times: dict[int, list[float]] = {}
        self.moves: list[tuple[float, float, str, str, set[int]]] = []
        """Times by the member's clock and of the report's arrival, member, event, its lanes."""

    def _note_lanes(self, name: str, event: str, reported: dict[str, Any]) -> None:
        before = set(self.seen.lanes[name])
        super()._note_lanes(name, event, reported)
        lanes = before ^ self.seen.lanes[name]
        self.moves.append((reported_at_s(reported), time.monotonic(), name, event, lanes))

    def history_of(self, lane: int, since_s: float) -> Iterator[str]:
        """Yield each report of a lane's moves."""
        for at_s, came_s, name, event, lanes in sorted(self.moves):
            if lane in lanes:
                times = f"{at_s - since_s:8.3f} s (came at {came_s - since_s:8.3f})"
                yield f"{times} lane {lane} {event} {name}"

    def _sight(
        self, name: str, at_s: float, lane: int, offset: int, key: str | None, value: str
    ) -> None:
        super()._sight(name, at_s, lane, offset, key, value)
        self.times.setdefault(name, []).append(at_s)
        self.lane_times.setdefault(lane, []).append(at_s)

    def pauses(
        self, times: Mapping[Any, list[float]], places: Iterable[Any], window: tuple[float, float]
    ) -> list[float]:
        """Longest time without a record at each place, in a window; ascending."""
        begin_s, end_s = window
        found = []
        for place in places:
            inside = [at for at in times.get(place, ()) if begin_s <= at <= end_s]
            marks = [begin_s, *inside, end_s]
            found.append(max(after - before for before, after in pairwise(marks)))
        return sorted(found)


class Churn:
    """The run: steps, and what they cost."""

    def __init__(
        self, group: ChurnGroup, other: ChurnGroup, nodes: Nodes, broker: EmbeddedKafka, seed: int
    ) -> None:
        """other: a group of another topic; the start of its members costs this machine as much."""
        self.group, self.other, self.nodes, self.broker = group, other, nodes, broker
        self.rng = random.Random(seed)
        self.began_s = time.monotonic()
        self.events: Mapping[str, tuple[tuple[str, Callable[[], object]], ...]] = {
            "join": (
                ("members elsewhere join", lambda: self._join(other)),
                ("two members join", lambda: self._join(group)),
            ),
            "leave": (
                ("members elsewhere leave", lambda: self._end_two(other, other.leave)),
                ("two members leave", lambda: self._end_two(group, group.leave)),
            ),
            "kill": (
                ("two members are killed", lambda: self._end_two(group, group.kill)),
                ("two members join", lambda: self._join(group)),
            ),
            "node": (("a node is killed", self._restart),),
            "broker": (("the broker is killed", self._restart_broker),),
        }

    def quiet(self, seconds: float) -> None:
        """Nothing happens."""
        self.group.wait_for_more(200)
        self._step("quiet", lambda: None, seconds)

    def round(self, events: Iterable[str]) -> None:
        """One of each event; the start and end of members elsewhere is what others compare to."""
        for event in events:
            for name, act in self.events[event]:
                self._step(name, act)

    def members(self) -> Iterator[str]:
        """Yield each living member with its lanes and its last record."""
        for name in self.group.living:
            last_s = max(self.group.times.get(name, [self.began_s])) - self.began_s
            yield f"{name} lanes {sorted(self.group.seen.lanes[name])} last record {last_s:.1f} s"

    def _end_two(self, group: ChurnGroup, end: Callable[[str], None]) -> None:
        java = [name for name in group.living if name.startswith("java")]
        other = [name for name in group.living if name not in java]
        for each in filter(None, (java, other)):
            end(self.rng.choice(each))

    def _join(self, group: ChurnGroup) -> None:
        group.add("confluent", 1)
        if any(name.startswith("java") for name in self.group.living):
            group.add("java", 1)

    def _restart(self) -> None:
        number = self.rng.randrange(len(self.nodes.processes))
        self.nodes[number].kill()
        self.nodes[number].start()

    def _restart_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def _step(self, name: str, act: Callable[[], object], seconds: float = STEP_S) -> None:
        group = self.group
        before = {member: set(group.seen.lanes[member]) for member in group.living}
        began_s = time.monotonic()
        act()
        group.wait_for_lanes(PARTITIONS * LANES, timeout_s=SETTLE_S)
        settled_s = time.monotonic() - began_s
        group.wait_for_more(200)
        left_s = began_s + seconds - time.monotonic()
        if left_s > 0:
            threading.Event().wait(left_s)
        window = began_s, time.monotonic()
        print(
            f"{began_s - self.began_s:7.1f} s {name:23} settled {settled_s:4.1f} s, "
            f"{len(group.living):2} members; longest pause of",
            end=" ",
        )
        shown = []
        for library in LIBRARIES:
            there = [name for name in before if name in group.living and name.startswith(library)]
            lanes = [lane for each in there for lane in before[each] & group.seen.lanes[each]]
            of_members = group.pauses(group.times, there, window)
            of_lanes = group.pauses(group.lane_times, lanes, window)
            shown.append(
                f"{len(there)} {library} {_shown(of_members)} "
                f"({len(lanes)} lanes that stayed {_shown(of_lanes)})"
            )
        print(", ".join(shown), flush=True)


def _shown(pauses: list[float]) -> str:
    return f"p50 {pauses[len(pauses) // 2]:.2f} max {pauses[-1]:.2f} s" if pauses else "-"


def main() -> int:
    """Run, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--java", type=int, default=8)
    parser.add_argument("--confluent", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--per-second", type=int, default=400)
    parser.add_argument("--quiet-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--events", default="join,leave,kill,node,broker")
    parser.add_argument("--logs", type=Path, help="folder that keeps logs of nodes and members")
    args = parser.parse_args()
    start_java_fast()
    with tempfile.TemporaryDirectory() as folder:
        return run(args, Path(folder))


def run(args: argparse.Namespace, folder: Path) -> int:
    """Exit code of one run."""
    with EmbeddedKafka(folder / "kafka", properties=BROKER) as broker:
        for name in (TOPIC, ELSEWHERE):
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            make_topic(admin, NewTopic(name, PARTITIONS, 1))
        rules = [f"{name}={LANES}" for name in (TOPIC, ELSEWHERE)]
        nodes = Nodes(broker.bootstrap, rules, folder=args.logs or folder, count=args.nodes)
        with nodes, _group(nodes, TOPIC, args) as group, _group(nodes, ELSEWHERE, args) as other:
            group.add("java", args.java)
            group.add("confluent", args.confluent)
            group.wait_for_lanes(PARTITIONS * LANES, timeout_s=SETTLE_S)
            churn = Churn(group, other, nodes, broker, args.seed)
            with steady_flow(broker.bootstrap, TOPIC, args.per_second) as values:
                try:
                    churn.quiet(args.quiet_s)
                    for _ in range(args.rounds):
                        churn.round(args.events.split(","))
                except AssertionError:
                    print("\n".join(churn.members()), flush=True)
                    raise
            group.wait_for_values(values, timeout_s=SETTLE_S)
            group.wait_for_commits(timeout_s=SETTLE_S)
        return judge(group, values, churn.began_s)


def _group(nodes: Nodes, topic: str, args: argparse.Namespace) -> ChurnGroup:
    group = ChurnGroup(nodes.bootstrap, topic, f"group-of-{topic}", protocol="consumer")
    group.log_folder = args.logs
    return group


def judge(group: ChurnGroup, values: list[str], began_s: float) -> int:
    """Print the verdict; 1 after a breach."""
    seen = group.seen
    again = sum(count - 1 for count in seen.values().values())
    failed = [event for _, event in seen.events if event["event"] == "commit_failed"]
    print(f"records {len(values)}, seen again {again}, commits {len(seen.commits)}")
    print(f"commits that failed {len(failed)}: {sorted({str(e.get('error')) for e in failed})}")
    breaches = 0
    for check in (
        seen.assert_nothing_committed_again,
        seen.assert_first_sightings_in_order,
        seen.assert_one_owner_at_a_time,
    ):
        try:
            check()
            print(f"{check.__name__.removeprefix('assert_')}: ok")
        except AssertionError as error:
            breaches += 1
            print(f"{check.__name__.removeprefix('assert_')}: BREACH {error}")
            if lane := re.search(r"lane (\d+)", str(error)):
                print("\n".join(group.history_of(int(lane[1]), began_s)))
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
