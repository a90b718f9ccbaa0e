"""Chaos: nodes, brokers, disks and members are hit in turn, and every answer is judged.

`python -m tests.long.nodes --rounds 150 --nodes 2 --seed 1 --events all`: in each round a node, a
broker or a member is killed, hung (SIGSTOP) or restarted, a stale replica leads, a disk or a log
is lost or cut, retention passes a group, or the quiet group asks for its positions.
`--minutes 90 --calm 15 30 --events member-kill,quiet,broker-restart,node-hang` is a long one with
slow churn, of which the nodes' memory has to be flat as well. Prints what it does, a table of how
long a group stood still by kind of event, and the verdict; exit code 1 when there is a breach.
Everything stays in `--folder`, where one is given.

In:    rounds, nodes, a seed.  Out: lines on stdout, `report.json` in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import statistics
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keylane.embedded import EmbeddedKafka
from tests.long.chaos_history import ClusterHistory, GroupHistory
from tests.long.chaos_hits import KINDS
from tests.long.chaos_judge import Finding, judge
from tests.long.chaos_run import ChaosRun, Event, Plan
from tests.long.chaos_topics import SAFE, empty_history
from tests.long.kafka_history import (
    judge_group_offsets,
    judge_journal_files,
    judge_positions,
    read_topic,
)

SHOWN_MAX = 12
HISTORY = "history.pickle"
BROKER_PROPERTIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "3",
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
    # A group that runs keeps its offsets, however long it commits nothing.
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "3000",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "1000",
}


def run(plan: Plan, folder: Path) -> dict[str, Any]:
    """One run; the report, whose `breaches` are empty when all held."""
    # Brokers that live for a minute: a quick compiler is worth more than a good one.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
    kafka = EmbeddedKafka(
        folder / "kafka", node_count=3, heap_mb=plan.heap_mb, properties=BROKER_PROPERTIES
    )
    breaches: list[str] = []
    history: dict[str, Any] = {}
    with kafka:
        chaos = ChaosRun(plan, kafka, folder)
        try:
            chaos.play()
        except AssertionError as error:
            breaches.append(f"stuck: {error}")
        except Exception:  # noqa: BLE001  a run that broke still reports its findings until then
            breaches.append(f"broke: {traceback.format_exc()}")
        breaches += chaos.breaches
        if plan.minutes:
            breaches += chaos.memory.faults()
        try:
            breaches += judge_history(kafka.bootstrap, history)
        except AssertionError as error:
            breaches.append(f"history: {error}")
    found, writers = judge_journal_files(node.settings.data_path for node in kafka.nodes)
    breaches += found
    history["journal_writers"] = {place: said for place, said in writers.items() if said}
    keep(chaos, folder / HISTORY)
    counts, findings, notes = judge_groups(chaos.cluster_history(), chaos.group_histories())
    breaches += [f"{each.kind}: {each.text}" for each in findings]
    return {
        "plan": asdict(plan),
        "counts": counts,
        "breach_kinds": Counter(each.kind for each in findings),
        "note_kinds": Counter(each.kind for each in notes),
        "notes": [f"{each.kind}: {each.text}" for each in notes],
        "by_kind": summarise(chaos.events),
        "history": history,
        "memory": chaos.memory.lines(),
        "breaches": breaches,
        "events": [asdict(event) for event in chaos.events],
    }


def judge_history(bootstrap: str, history: dict[str, Any]) -> list[str]:
    """Judge the groups' offsets over time, by Kafka's own topics."""
    breaches = []
    journal = read_topic(bootstrap, "__individual_commit_offsets")
    offsets = read_topic(bootstrap, "__consumer_offsets")
    for group in ("own", "lane", "still"):
        # Logs of `weak` and `lone` are cut, and positions with them.
        found = judge_group_offsets(offsets, journal, group)
        history[f"{group}_offsets"] = found.count
        history[f"{group}_unconfirmed_steps_back"] = found.unconfirmed
        breaches += [text for text in found.breaches if "'safe'" in text or "'quiet'" in text]
    history["states_written"] = judge_positions(journal)[1]
    return breaches


def judge_groups(
    cluster: ClusterHistory, groups: Iterable[GroupHistory]
) -> tuple[dict[str, Counter[str]], list[Finding], list[Finding]]:
    """Counts by group, breaches and notes."""
    counts, breaches, notes = {}, [], []
    for group in groups:
        verdict = judge(cluster, group)
        counts[group.group] = verdict.counts
        breaches += verdict.breaches
        notes += verdict.notes
    return counts, breaches, notes


def keep(chaos: ChaosRun, path: Path) -> None:
    """Write the histories to a file, to be judged later."""
    cluster = chaos.cluster_history()
    events = {each.group: each.events for each in chaos.group_histories()}
    path.write_bytes(pickle.dumps((cluster.produced, cluster.logs, cluster.seen, events)))


def judge_again(path: Path) -> int:
    """Judge a file of `keep`, with nothing started; return the exit code."""
    produced, logs, seen, events = pickle.loads(path.read_bytes())  # noqa: S301  our own file
    cluster = ClusterHistory(produced=produced, logs=logs, seen=seen, safe_topics=SAFE)
    groups = [empty_history(name) for name in events]
    for group in groups:
        group.events += events[group.group]
    counts, breaches, notes = judge_groups(cluster, groups)
    for name, count in counts.items():
        print(f"{name}: {dict(count)}")
    for name, found in (("note", notes), ("BREACH", breaches)):
        kinds = Counter(each.kind for each in found)
        print("\n".join(show(name, [f"{each.kind}: {each.text}" for each in found], kinds)))
    return 1 if breaches else 0


def summarise(events: list[Event]) -> dict[str, dict[str, float]]:
    """Return count, median and maximum of the time without progress, by kind of event."""
    kinds: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if not event.settled_s:
            continue  # a hit that failed, which the breaches name
        kinds[event.kind].append(event)
        if event.is_coordinator is not None:
            kinds[f"{event.kind}, {'' if event.is_coordinator else 'not '}coordinator"].append(
                event
            )
    return {
        kind: {
            "count": len(found),
            "all_s_median": round(statistics.median(each.all_s for each in found), 2),
            "all_s_max": round(max(each.all_s for each in found), 2),
            "lane_s_median": round(statistics.median(each.lane_s for each in found), 2),
            "lane_s_max": round(max(each.lane_s for each in found), 2),
            "acted_s_median": round(statistics.median(each.acted_s for each in found), 2),
            "settled_s_median": round(statistics.median(each.settled_s for each in found), 2),
        }
        for kind, found in sorted(kinds.items())
    }


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    columns = ("all_s_median", "all_s_max", "lane_s_median", "lane_s_max", "settled_s_median")
    lines = [
        "time without a record, in seconds: at all members together; of the worst lane;",
        "and until all had settled",
        f"{'event':34}{'count':>6}{'median':>9}{'max':>8}{'lane':>9}{'max':>8}{'settled':>9}",
    ]
    for kind, found in report["by_kind"].items():
        widths = zip(columns, (9, 8, 9, 8, 9), strict=True)
        figures = "".join(f"{found[column]:>{width}.2f}" for column, width in widths)
        lines.append(f"{kind:34}{found['count']:>6}{figures}")
    loads = [event["machine_load"] for event in report["events"]]
    if loads:
        lines.append(f"load of the machine {min(loads):.0f} to {max(loads):.0f}")
    lines += [f"{group}: {dict(counts)}" for group, counts in report["counts"].items()]
    lines += report["memory"]
    lines += show("note", report["notes"], report["note_kinds"])
    lines += show("BREACH", report["breaches"], report["breach_kinds"])
    count, plan = len(report["breaches"]), report["plan"]
    verdict = f"FAILED, {count} breaches" if count else "nothing lost, nothing committed again, "
    verdict += "" if count else "no answer below a commit, every key in order"
    return "\n".join([*lines, f"seed {plan['seed']}, {plan['nodes']} nodes: {verdict}"])


def show(name: str, texts: Sequence[str], kinds: Counter[str]) -> Iterable[str]:
    """Yield the count of each kind, and the first ones of each."""
    if kinds:
        yield f"{name} kinds: {dict(kinds)}"
    shown: Counter[str] = Counter()
    for text in texts:
        kind = text.partition(":")[0]
        shown[kind] += 1
        if shown[kind] <= SHOWN_MAX // 4:
            yield f"{name}: {text}"


def end_early(*_: object) -> None:
    """End the run in order, with a report of what was seen. Raises: InterruptedError."""
    raise InterruptedError("ended by a signal")


def main() -> int:
    """Run and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--minutes", type=float, default=0, help="in place of rounds; nodes' memory has to be flat"
    )
    parser.add_argument(
        "--calm", type=float, nargs=2, default=(0.2, 1.0), help="seconds between hits, from and to"
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rate", type=int, default=120, help="records per second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--events", default="all", help=f"only these, by comma, of {', '.join(KINDS)}"
    )
    parser.add_argument("--heap-mb", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="where logs and the report stay")
    parser.add_argument("--judge", type=Path, help="only judge what a run left in this folder")
    args = parser.parse_args()
    if args.judge:
        return judge_again(args.judge / HISTORY)
    unknown = set(args.events.split(",")) - {"all", *KINDS}
    if unknown:
        parser.error(f"--events: no event is called {', '.join(sorted(unknown))}")
    plan = Plan(
        rounds=args.rounds,
        minutes=args.minutes,
        calm_s=tuple(args.calm),
        nodes=args.nodes,
        rate=args.rate,
        seed=args.seed,
        kinds=KINDS if args.events == "all" else tuple(args.events.split(",")),
        heap_mb=args.heap_mb,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_early)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "kafka").exists():
            parser.error(f"--folder {folder} holds an earlier run")
        report = run(plan, folder)
        (folder / "report.json").write_text(json.dumps(report, indent=1))
    print(json.dumps({"by_kind": report["by_kind"], "breaches": len(report["breaches"])}))
    print(render(report))
    return 1 if report["breaches"] else 0


if __name__ == "__main__":
    sys.exit(main())
