"""Whole groups of stock consumers, and checks of the records that they saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Producer

from keylane.embedded import start_java_tool
from tests.integration.keylane_process import PATIENCE

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WALL_S = time.clock_gettime(time.CLOCK_REALTIME) - time.monotonic()
"""What the wall clock is ahead of the monotonic one."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One record at one member."""

    member: str
    lane: int
    offset: int
    key: str | None
    value: str
    at_s: float
    """Of the member's own clock: its report may be read after a later one of another member."""


@dataclass(slots=True)
class Seen:
    """Reports of a group's members, in the order in which they were read."""

    sightings: list[Sighting] = field(default_factory=list)
    commits: list[tuple[float, str, int, int]] = field(default_factory=list)
    """(monotonic seconds, member, lane, offset)."""
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lanes: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def values(self) -> Counter[str]:
        """Return how often each value was seen."""
        return Counter(sighting.value for sighting in self.sightings)

    def busy(self) -> set[str]:
        """Members that got a record."""
        return {sighting.member for sighting in self.sightings}

    def lanes_of(self, members: Iterable[str]) -> dict[str, list[int]]:
        """Return the lanes that members hold by their reports."""
        return {name: sorted(self.lanes[name]) for name in members}

    def assert_keys_in_order(self) -> None:
        """Values of a key are numbers that only ascend, and each key has one member."""
        last: dict[str | None, int] = {}
        owner: dict[str | None, str] = {}
        for sighting in self.sightings:
            number = int(sighting.value.rsplit(":", 1)[1])
            assert last.get(sighting.key, -1) < number, f"key {sighting.key} went back to {number}"
            last[sighting.key] = number
            first = owner.setdefault(sighting.key, sighting.member)
            assert first == sighting.member, f"key {sighting.key} at {first} and {sighting.member}"

    def assert_first_sightings_in_order(self) -> None:
        """Expect repeats of uncommitted records only; first deliveries of a key ascend."""
        last: dict[str | None, int] = {}
        known: set[str] = set()
        for sighting in sorted(self.sightings, key=lambda each: each.at_s):
            if sighting.value in known:
                continue
            known.add(sighting.value)
            number = int(sighting.value.rsplit(":", 1)[1])
            assert last.get(sighting.key, -1) < number, (
                f"{sighting.value} after {last[sighting.key]}: lane {sighting.lane} "
                f"offset {sighting.offset} at {sighting.member} {sighting.at_s:.3f}"
            )
            last[sighting.key] = number

    def assert_one_owner_at_a_time(self) -> None:
        """No lane is assigned to a member while another one that lives has it, by their reports.

        A process that has ended reports nothing more; its lanes go over to others. Reports count in
        the order of the members' own clocks, which are this machine's: they arrive in another one.
        """
        owners: dict[int, str] = {}
        for member, reported in sorted(self.events, key=lambda each: reported_at_s(each[1])):
            event = reported["event"].removeprefix("partitions_")
            lanes = set(reported.get("lanes", ()))
            lanes |= {each["partition"] for each in reported.get("partitions", ())}
            if event == "ended":
                lanes = {lane for lane, owner in owners.items() if owner == member}
            for lane in lanes:
                if event == "assigned":
                    owner = owners.setdefault(lane, member)
                    assert owner == member, f"lane {lane} is at {owner} and at {member}"
                elif event in {"revoked", "lost", "ended"} and owners.get(lane) == member:
                    del owners[lane]

    def assert_nothing_committed_again(self) -> None:
        """No record is seen after a commit that covers it was acknowledged."""
        commits = iter(sorted(self.commits))
        following = next(commits, None)
        done: dict[int, int] = {}
        for sighting in sorted(self.sightings, key=lambda each: each.at_s):
            while following is not None and following[0] < sighting.at_s:
                done[following[2]] = max(done.get(following[2], 0), following[3])
                following = next(commits, None)
            committed = done.get(sighting.lane, 0)
            assert sighting.offset >= committed, (
                f"lane {sighting.lane} offset {sighting.offset} came again at {sighting.member} "
                f"after {committed} was committed"
            )


def reported_at_s(reported: Mapping[str, Any]) -> float:
    """Monotonic seconds of a report; Java's members give milliseconds of the wall clock."""
    if "at_s" in reported:
        return float(reported["at_s"])
    return float(reported["timestamp"]) / 1000 - WALL_S


class Group:
    """Stock consumers in one group, each a child process."""

    log_folder: Path | None = None
    """Keeps what members print on stderr."""

    def __init__(self, bootstrap: str, topic: str, group: str, **options: Any) -> None:
        self.bootstrap, self.topic, self.group, self.options = bootstrap, topic, group, options
        self.seen = Seen()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._changed = threading.Condition()
        self._readers: list[threading.Thread] = []

    def add(self, library: str, count: int = 1, **options: Any) -> list[str]:
        """Start members of `library` ("java" is Kafka's VerifiableConsumer); returns names."""
        names = []
        for _ in range(count):
            name = f"{library}-{len(self.processes)}"
            merged = self.options | options
            process = self._start_java(merged) if library == "java" else None
            process = process or self._start_member(library, name, merged)
            self.processes[name] = process
            reader = threading.Thread(target=self._read, args=(name, process), daemon=True)
            reader.start()
            self._readers.append(reader)
            names.append(name)
        return names

    def _start_member(
        self, library: str, name: str, options: dict[str, Any]
    ) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.integration.member", library]
        bootstrap = options.get("bootstrap", self.bootstrap)
        command += ["--bootstrap", bootstrap, "--group", self.group]
        command += ["--topic", self.topic, "--name", name]
        for key, value in (item for item in options.items() if item[0] != "bootstrap"):
            command += [f"--{key.replace('_', '-')}", str(value)]
        with open(self.log_folder / f"{name}.log" if self.log_folder else os.devnull, "ab") as log:
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def _start_java(self, options: dict[str, Any]) -> subprocess.Popen[str]:
        assignor = options.get("assignor", "org.apache.kafka.clients.consumer.RangeAssignor")
        bootstrap = options.get("bootstrap", self.bootstrap)
        command = ["--bootstrap-server", bootstrap, "--group-id", self.group]
        command += ["--topic", self.topic, "--verbose", "--reset-policy", "earliest"]
        if options.get("protocol") == "consumer":
            command += ["--group-protocol", "consumer"]
        else:
            command += ["--assignment-strategy", assignor]
            command += ["--session-timeout", str(options.get("session_timeout_ms", 10_000))]
        return start_java_tool("kafka-verifiable-consumer", *command)

    @property
    def living(self) -> list[str]:
        """Members whose process runs."""
        return [name for name, process in self.processes.items() if process.poll() is None]

    def kill(self, name: str) -> None:
        """SIGKILL a member."""
        self.processes[name].kill()
        self.processes[name].wait()

    def leave(self, name: str) -> None:
        """Have a member close its consumer, and wait for its end."""
        self.processes[name].terminate()
        self.processes[name].wait(30 * PATIENCE)

    def wait(self, condition: Callable[[Seen], bool], *, timeout_s: float, what: str) -> None:
        """Wait until the members have reported enough."""
        timeout_s *= PATIENCE
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while not condition(self.seen):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise AssertionError(
                        f"not within {timeout_s:g} s: {what}; seen {len(self.seen.sightings)} "
                        f"records at {sorted(self.seen.busy())}, "
                        f"lanes {self.seen.lanes_of(self.living)}, "
                        f"errors {[e for e in self.seen.events if e[1]['event'] == 'error'][-4:]}, "
                        f"last events {self.seen.events[-8:]}"
                    )
                self._changed.wait(left_s)

    def wait_for_values(self, values: Iterable[str], *, timeout_s: float = 60) -> None:
        """Wait until every value was seen, wherever."""
        wanted = set(values)
        found: set[str] = set()
        position = 0

        def is_complete(seen: Seen) -> bool:
            nonlocal position
            found.update(sighting.value for sighting in seen.sightings[position:])
            position = len(seen.sightings)
            return wanted <= found

        self.wait(is_complete, timeout_s=timeout_s, what=f"{len(wanted)} values")

    def wait_for_commits(self, *, timeout_s: float = 30) -> None:
        """Wait until each lane's last record seen is committed."""
        ends: dict[int, int] = {}
        committed: dict[int, int] = {}
        sightings, commits = 0, 0

        def all_committed(seen: Seen) -> bool:
            nonlocal sightings, commits
            for sighting in seen.sightings[sightings:]:
                ends[sighting.lane] = max(ends.get(sighting.lane, 0), sighting.offset + 1)
            for _, _, lane, offset in seen.commits[commits:]:
                committed[lane] = max(committed.get(lane, -1), offset)
            sightings, commits = len(seen.sightings), len(seen.commits)
            return all(committed.get(lane, -1) >= end for lane, end in ends.items())

        self.wait(all_committed, timeout_s=timeout_s, what="commits of all that was seen")

    def wait_for_lanes(self, count: int, *, timeout_s: float = 60) -> None:
        """Wait until the living members hold `count` lanes together."""

        def is_spread(seen: Seen) -> bool:
            living = [name for name, p in self.processes.items() if p.poll() is None]
            held = [lane for name in living for lane in seen.lanes[name]]
            return len(held) == count == len(set(held)) and all(seen.lanes[n] for n in living)

        self.wait(is_spread, timeout_s=timeout_s, what=f"{count} lanes at living members")

    def wait_for_even_lanes(self, each: int, *, timeout_s: float = 120) -> None:
        """Wait until the living members hold `each` lanes: none of an idle topic moves then.

        A consumer group (KIP-848) deals out lane by lane. Those that are to move to the last member
        are at others until then, so that all lanes are at members long before.
        """

        def is_even(seen: Seen) -> bool:
            return all(len(seen.lanes[name]) == each for name in self.living)

        self.wait(is_even, timeout_s=timeout_s, what=f"{each} lanes at each member")

    def wait_for_members(self, count: int, *, timeout_s: float = 60) -> None:
        """Wait until so many living members hold a partition or a lane."""

        def are_there(seen: Seen) -> bool:
            living = [name for name, p in self.processes.items() if p.poll() is None]
            return sum(bool(seen.lanes[name]) for name in living) >= count

        self.wait(are_there, timeout_s=timeout_s, what=f"{count} members with work")

    def wait_for_more(self, count: int, *, timeout_s: float = 60) -> None:
        """Wait until the group has got so many records more."""
        until = len(self.seen.sightings) + count
        wanted = f"{count} more records"
        self.wait(lambda seen: len(seen.sightings) >= until, timeout_s=timeout_s, what=wanted)

    def stop(self) -> None:
        """End all members, cleanly first."""
        for process in self.processes.values():
            process.terminate()
        deadline_s = time.monotonic() + 20 * PATIENCE
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        for reader in self._readers:
            reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        """Read a member's reports; records of a half-written line were not committed either."""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.startswith("{") and line.endswith("\n"):
                    self._take(name, json.loads(line))
        with self._changed:
            self.seen.events.append((name, {"event": "ended", "at_s": time.monotonic()}))
            self._changed.notify_all()

    def _take(self, name: str, reported: dict[str, Any]) -> None:
        event = reported.pop("event", None) or reported.pop("name", "")
        with self._changed:
            if event == "records":
                for record in reported["records"]:
                    self._sight(name, reported_at_s(reported), *record)
            elif event == "record_data":
                record = [reported[each] for each in ("partition", "offset", "key", "value")]
                self._sight(name, reported_at_s(reported), *record)
            elif event == "committed":
                offsets = {int(lane): at for lane, at in reported["offsets"].items()}
                self._note_commits(name, reported_at_s(reported), offsets)
            elif event == "offsets_committed" and reported["success"]:
                offsets = {p["partition"]: p["offset"] for p in reported["offsets"]}
                self._note_commits(name, reported_at_s(reported), offsets)
            elif event != "records_consumed":
                self.seen.events.append((name, {"event": event, **reported}))
                self._note_lanes(name, event.removeprefix("partitions_"), reported)
            self._changed.notify_all()

    def _sight(
        self, name: str, at_s: float, lane: int, offset: int, key: str | None, value: str
    ) -> None:
        self.seen.sightings.append(Sighting(name, lane, offset, key, value, at_s))

    def _note_commits(self, name: str, at_s: float, offsets: dict[int, int]) -> None:
        for lane, offset in offsets.items():
            self.seen.commits.append((at_s, name, lane, offset))

    def _note_lanes(self, name: str, event: str, reported: dict[str, Any]) -> None:
        lanes = set(reported.get("lanes", ())) | {
            p["partition"] for p in reported.get("partitions", ())
        }
        if event == "assigned":
            # Cooperative assignors report additions; eager ones have reported all as revoked.
            self.seen.lanes[name] |= lanes
        elif event in {"revoked", "lost"}:
            self.seen.lanes[name] -= lanes


def produce(
    bootstrap: str,
    topic: str,
    keys: Sequence[str],
    rounds: int,
    *,
    codecs: Sequence[str] = CODECS,
    first: int = 0,
    partition: int | None = None,
) -> list[str]:
    """Produce `rounds` numbered values per key, a codec per round; returns all values."""
    producers = {
        codec: Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "linger.ms": 5,
                "partitioner": "murmur2_random",
            }
        )
        for codec in dict.fromkeys(codecs)
    }
    values = []
    where: dict[str, Any] = {} if partition is None else {"partition": partition}
    for number in range(first, first + rounds):
        producer = producers[codecs[number % len(codecs)]]
        for key in keys:
            value = f"{key}:{number}"
            producer.produce(topic, key=key, value=value, **where)
            values.append(value)
        left = producer.flush(30)
        assert left == 0, f"{left} records were not produced"
    return values
