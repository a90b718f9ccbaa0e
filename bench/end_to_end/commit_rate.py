"""One group, a member per lane, commits each second: what it costs keylane, and how many it takes.

    python -m bench.end_to_end.commit_rate [--members 256] [--seconds 20] [--rounds 3]

Members are light clients (`light_members`) of a group on one partition with a lane each, and beside
them the same members directly on Kafka, on a topic with a partition each. Three times a round:
- idle: heartbeats only, which say what a group costs that commits nothing;
- paced: each member commits once a second, at moments that are spread over the second;
- fast: each member commits again as soon as it is answered: the most that one group can commit.
All records were read through keylane before, so that each commit finds what it is about known.

In:    nothing; an embedded Kafka.
Out:   a table and bench/results/<name>.json: CPU of keylane per commit (of all commits, less that
       of the idle group), commits per second, p50 and p99 of a commit's wait.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from bench.end_to_end.drain import Drain, find_leader
from bench.end_to_end.light_members import Member, Members
from bench.end_to_end.stage import (
    Spread,
    Stage,
    Topic,
    Watch,
    create_topic,
    describe_run,
    fill_topic,
    open_stage,
    save,
)

DIRECT, LANES = "direct", "lanes"
IDLE, PACED, FAST = "idle", "paced", "fast"
STEP: Final = 50
"""Offsets between two commits of a member."""
READ_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Phase:
    """Figures of one of the three phases."""

    commits: int
    seconds: float
    cpu_s: float
    """CPU time of keylane."""
    p50_ms: float
    p99_ms: float


def main() -> int:
    """Measure and report."""
    options = parse_options()
    about = describe_run() | {"options": vars(options)}
    print(f"machine: {about}")
    found: dict[tuple[str, str], list[Phase]] = defaultdict(list)
    with open_stage() as stage:
        topic = fill_topic(
            stage, "orders", codec="lz4", record_bytes=200, megabytes=options.megabytes,
            batch_bytes=65_536, partitions=1,
        )  # fmt: skip
        create_topic(stage, "plain", options.members)
        lanes = f"{topic.name}.lanes-{options.members}"
        read_all(stage, topic, lanes, options.members)
        ways = {DIRECT: (stage.kafka.bootstrap, "plain"), LANES: (stage.keylane.bootstrap, lanes)}
        for number in range(options.rounds):
            for way, (bootstrap, name) in ways.items():
                members = Members(bootstrap, f"bench-{way}-{number}", name, options.members)
                phases = asyncio.run(measure(stage, members, topic.ends[0], options.seconds))
                for kind, phase in phases.items():
                    found[way, kind].append(phase)
                print(f"  round {number} {way}: {phases}", file=sys.stderr)
    print(save(options.name, about | {"phases": report(found)}))
    return 0


def parse_options() -> argparse.Namespace:
    """Read argv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=256, help="and lanes")
    parser.add_argument("--seconds", type=float, default=20, help="of each phase")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=20, help="plain MB of the topic")
    parser.add_argument("--name", default="commit-rate", help="of the result file")
    return parser.parse_args()


def read_all(stage: Stage, topic: Topic, name: str, lanes: int) -> None:
    """Have keylane read the partition, as a group that works on it would have."""
    indexes = dict.fromkeys(range(lanes), 0)
    ends = dict.fromkeys(range(lanes), topic.ends[0])
    drain = Drain(find_leader(stage.keylane.bootstrap, name), name, indexes, ends)
    try:
        drain.drain(READ_TIMEOUT_S)
    finally:
        drain.close()
    assert drain.counts.records == topic.record_count, "each record is in one lane"


async def measure(stage: Stage, members: Members, end: int, seconds: float) -> dict[str, Phase]:
    """Join, go through the phases, leave."""
    await members.gather()
    count = len(members.members)
    offsets = dict.fromkeys(range(count), 0)

    async def commit(member: Member) -> None:
        offsets[member.index] = min(end, offsets[member.index] + STEP)
        # No two lanes side by side stand at one offset, as none do that hold records.
        await member.commit(offsets[member.index] - member.index % STEP)

    async def paced(member: Member, until_s: float) -> None:
        due_s = time.monotonic() + member.index / count
        while due_s < until_s:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            await commit(member)
            due_s += 1.0

    async def fast(member: Member, until_s: float) -> None:
        while time.monotonic() < until_s:
            await commit(member)

    async def idle(_member: Member, until_s: float) -> None:
        await asyncio.sleep(max(0.0, until_s - time.monotonic()))

    try:
        for member in members.members:  # a group's first commits ask where it stands
            await commit(member)
        kinds = {IDLE: idle, PACED: paced, FAST: fast}
        return {
            name: await run_phase(stage, members, work, seconds) for name, work in kinds.items()
        }
    finally:
        await members.leave()


async def run_phase(
    stage: Stage,
    members: Members,
    work: Callable[[Member, float], Coroutine[Any, Any, None]],
    seconds: float,
) -> Phase:
    """Let all members do something for a while; return the figures."""
    members.take_waits()
    started_s = time.monotonic()
    with Watch(stage.keylane) as watch:
        until_s = started_s + seconds
        await asyncio.gather(*(work(member, until_s) for member in members.members))
    took_s = time.monotonic() - started_s
    waits_ms = sorted(1000 * wait_s for wait_s in members.take_waits())
    p99_ms = waits_ms[int(0.99 * len(waits_ms))] if waits_ms else 0.0
    p50_ms = statistics.median(waits_ms) if waits_ms else 0.0
    return Phase(len(waits_ms), took_s, watch.cpu_s, p50_ms, p99_ms)


def report(found: dict[tuple[str, str], list[Phase]]) -> dict[str, Any]:
    """Print the table; return it for the result file."""
    print(f"\n  {'way':7} {'phase':6} {'commits/s':>20} {'keylane CPU us each':>24} "
          f"{'p50 ms':>20} {'p99 ms':>22}")  # fmt: skip
    table: dict[str, Any] = {}
    for (way, kind), phases in found.items():
        idle = found[way, IDLE]
        rates = Spread(tuple(one.commits / one.seconds for one in phases))
        costs_us = Spread(tuple(map(cost_us, phases, idle)))
        p50_ms = Spread(tuple(one.p50_ms for one in phases))
        p99_ms = Spread(tuple(one.p99_ms for one in phases))
        cost = costs_us.text() if way == LANES and kind != IDLE else ""
        print(f"  {way:7} {kind:6} {rates.text():>20} {cost:>24} {p50_ms.text(1):>20} "
              f"{p99_ms.text(1):>22}")  # fmt: skip
        table[f"{way} {kind}"] = {
            "commits_per_s": rates.as_json(),
            "keylane_cpu_s": [round(one.cpu_s, 3) for one in phases],
            "keylane_cpu_us_each": costs_us.as_json(),
            "p50_ms": p50_ms.as_json(),
            "p99_ms": p99_ms.as_json(),
        }
    return table


def cost_us(phase: Phase, idle: Phase) -> float:
    """CPU of keylane per commit, beyond that of the group when it commits nothing."""
    if not phase.commits:
        return 0.0
    return 1e6 * (phase.cpu_s - idle.cpu_s * phase.seconds / idle.seconds) / phase.commits


if __name__ == "__main__":
    sys.exit(main())
