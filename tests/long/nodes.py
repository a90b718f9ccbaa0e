"""Many nodes in front of three brokers, one hit after the other: what is lost, how long it stops.

`python -m tests.long.nodes --rounds 50 --nodes 3 --seed 7`: in each round a node or a broker is
killed, hung (SIGSTOP) or restarted under load. Prints what it does, a table of how long the group
stood still by kind of event, and the verdict; exit code 1 when anything was lost, came again after
its commit, or went out of order. Everything stays in `--folder`, where one is given.

In:    rounds, nodes, a seed.  Out: lines on stdout, `report.json` in the folder.
Next:  `chaos_run` plays it, `group_book` and `kafka_history` judge it.
Shell: child processes.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import traceback
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keylane.embedded import EmbeddedKafka
from tests.long.chaos_run import ChaosRun, Event, Plan
from tests.long.group_book import judge
from tests.long.kafka_history import (
    judge_group_offsets,
    judge_journal_files,
    judge_positions,
    read_topic,
)

SHOWN_MAX = 12
BROKER_PROPERTIES = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "num.partitions": "3",
    "auto.create.topics.enable": "false",
}


def run(plan: Plan, folder: Path) -> dict[str, Any]:
    """One run; the report, whose `breaches` are empty when all held."""
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
        except Exception:  # noqa: BLE001  a run that broke still tells what it saw until then
            breaches.append(f"broke: {traceback.format_exc()}")
        breaches += chaos.breaches
        try:
            journal = read_topic(kafka.bootstrap, "__individual_commit_offsets")
            offsets = judge_group_offsets(
                read_topic(kafka.bootstrap, "__consumer_offsets"), journal, plan.group
            )
            history["group_offset_commits"] = offsets.count
            history["unconfirmed_steps_back"] = offsets.unconfirmed
            found, history["states_written"] = judge_positions(journal)
            breaches += offsets.breaches + found
        except AssertionError as error:
            breaches.append(f"history: {error}")
    found, writers = judge_journal_files(node.settings.data_path for node in kafka.nodes)
    breaches += found
    history["journal_writers"] = {place: said for place, said in writers.items() if said}
    verdict = judge(chaos.told)
    breaches += verdict.breaches
    return {
        "plan": asdict(plan),
        "produced": chaos.produced,
        "delivered": verdict.delivered,
        "repeated": verdict.repeated,
        "late": len(verdict.late),
        "late_first": verdict.late[:SHOWN_MAX],
        "by_kind": summarise(chaos.events),
        "history": history,
        "breaches": breaches,
        "events": [asdict(event) for event in chaos.events],
    }


def summarise(events: list[Event]) -> dict[str, dict[str, float]]:
    """By kind of event: how many, and median and maximum of the time without progress."""
    kinds: dict[str, list[Event]] = defaultdict(list)
    for event in events:
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
        }
        for kind, found in sorted(kinds.items())
    }


def render(report: dict[str, Any]) -> str:
    """The report as text."""
    columns = ("all_s_median", "all_s_max", "lane_s_median", "lane_s_max", "acted_s_median")
    lines = [
        "time without a record, in seconds: at all members together; of the worst lane;",
        "and how long the event itself lasted",
        f"{'event':34}{'count':>6}{'median':>9}{'max':>8}{'lane':>9}{'max':>8}{'event':>8}",
    ]
    for kind, found in report["by_kind"].items():
        widths = zip(columns, (9, 8, 9, 8, 8), strict=True)
        figures = "".join(f"{found[column]:>{width}.2f}" for column, width in widths)
        lines.append(f"{kind:34}{found['count']:>6}{figures}")
    counts = {key: report[key] for key in ("produced", "delivered", "repeated", "late")}
    loads = [event["machine_load"] for event in report["events"]]
    if loads:
        lines.append(f"load of the machine {min(loads):.0f} to {max(loads):.0f}")
    history = report["history"]
    lines.append(f"{counts} {history.get('group_offset_commits')} group offsets")
    lines += [
        f"offset stepped back, unconfirmed: {text}"
        for text in history.get("unconfirmed_steps_back", [])[:SHOWN_MAX]
    ]
    lines += [f"late: {text}" for text in report["late_first"][:3]]
    lines += [f"BREACH: {text}" for text in report["breaches"][:SHOWN_MAX]]
    seed = report["plan"]["seed"]
    verdict = (
        f"FAILED, {len(report['breaches'])} breaches"
        if report["breaches"]
        else ("nothing lost, nothing committed delivered again, every key in order")
    )
    return "\n".join([*lines, f"seed {seed}: {verdict}"])


def end_early(*_: object) -> None:
    """End the run in order, with a report of what was seen. Raises: InterruptedError."""
    raise InterruptedError("ended by a signal")


def main() -> int:
    """Run and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--members", type=int, default=12)
    parser.add_argument("--rate", type=int, default=300, help="records per second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="only these, by comma, such as node-kill")
    parser.add_argument("--heap-mb", type=int, default=384)
    parser.add_argument("--strangers", action="store_true", help="nodes without --node: must fail")
    parser.add_argument("--folder", type=Path, help="where logs and the report stay")
    args = parser.parse_args()
    plan = Plan(
        rounds=args.rounds,
        nodes=args.nodes,
        members=args.members,
        rate=args.rate,
        seed=args.seed,
        kinds=tuple(filter(None, args.kinds.split(","))),
        heap_mb=args.heap_mb,
        is_numbered=not args.strangers,
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
