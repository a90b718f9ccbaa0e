"""Measure direct Kafka, keylane and its peers side by side, and write docs/performance.md.

    python -m bench.side_by_side [SCENARIO ...] [--repetitions 5] [--minutes 12]
        [--kafka-port 29092 --proxy NAME=HOST:PORT:PID ...]

A proxy of yours is started by you, in front of the port that you give to the benchmark's Kafka.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from typing import Any, Final

from bench.end_to_end.stage import RESULTS, describe_run
from bench.peers.java_program import PARALLEL_CONSUMER_VERSION
from bench.side_by_side import page
from bench.side_by_side.lineup import Lineup, OtherProxy, open_lineup, progress
from bench.side_by_side.outcome import Outcome
from keylane import __version__

SCENARIOS: Final = (
    "kernel", "relay", "low_rate", "fan_out", "small_batches", "stuck", "footprint", "readiness",
    "large_group", "slow_work", "python_workers", "python_hot_key",
    "python_short_work",
)  # fmt: skip
RESULT: Final = "side-by-side"


def main() -> int:
    """Measure, save, write the page; exit code 1 when a scenario failed."""
    options = parse_options()
    started_s = time.monotonic()
    about = describe_run() | {"keylane": __version__, "options": vars(options)}
    outcomes: list[Outcome] = []
    failed: list[str] = []
    with open_lineup(
        repetitions=options.repetitions,
        scale=options.scale,
        kafka_port=options.kafka_port,
        others=[read_proxy(text) for text in options.proxy],
    ) as lineup:
        about["haproxy"] = lineup.haproxy.version if lineup.haproxy else "none"
        about["parallel_consumer"] = PARALLEL_CONSUMER_VERSION
        for name in options.scenario or SCENARIOS:
            spent_minutes = (time.monotonic() - started_s) / 60
            if spent_minutes > options.minutes:
                lineup.missing.append(f"{name}: not run, {options.minutes:g} minutes were over")
                continue
            outcome = run_one(name, lineup)
            if outcome is None:
                failed.append(name)
                lineup.missing.append(f"{name}: failed")
            else:
                outcomes.append(outcome)
            about["missing"] = lineup.missing
            about["seconds"] = round(time.monotonic() - started_s)
            save(about, outcomes)  # each time: a run that is ended early was not for nothing
    progress(f"took {about['seconds']} s")
    return 1 if failed else 0


def parse_options() -> argparse.Namespace:
    """Read argv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help=" ".join(SCENARIOS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of data and times; 0.2 to try")
    parser.add_argument("--minutes", type=float, default=12, help="start no scenario after that")
    parser.add_argument("--kafka-port", type=int, default=0, help="of the benchmark's Kafka")
    parser.add_argument("--proxy", action="append", default=[], metavar="NAME=HOST:PORT:PID")
    options = parser.parse_args()
    unknown = set(options.scenario) - set(SCENARIOS)
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    return options


def read_proxy(text: str) -> OtherProxy:
    """`NAME=HOST:PORT:PID`."""
    try:
        name, _, place = text.partition("=")
        host, port, pid = place.split(":")
        return OtherProxy(name, f"{host}:{int(port)}", int(pid))
    except ValueError:
        sys.exit(f"--proxy {text}: not NAME=HOST:PORT:PID")


def run_one(name: str, lineup: Lineup) -> Outcome | None:
    """Run one scenario; None when it failed, which is printed and does not end the others."""
    started_s = time.monotonic()
    try:
        outcome: Outcome = importlib.import_module(f"bench.side_by_side.{name}").run(lineup)
    except Exception as error:  # noqa: BLE001 (whatever it is: the others are measured still)
        progress(f"{name} failed: {error!r}")
        return None
    print(f"\n{outcome.title} ({time.monotonic() - started_s:.0f} s)")
    for row in (outcome.columns, *outcome.rows):
        print("  " + " | ".join(row))
    for target in outcome.targets:
        sign = "<=" if target.is_upper else ">="
        word = "holds " if target.holds else "MISSED"
        print(f"  {word} {target.text}: {target.measured:.2f} {sign} {target.bound:g}", flush=True)
    return outcome


def save(about: dict[str, Any], outcomes: list[Outcome]) -> None:
    """Put the new outcomes in the place of those of the same name, and write the page."""
    path = RESULTS / f"{RESULT}.json"
    known: dict[str, Any] = {}
    if path.exists():
        known = {entry["name"]: entry for entry in json.loads(path.read_text())["outcomes"]}
    for outcome in outcomes:
        known[outcome.name] = outcome.as_json() | {"about": about}
    ordered = [known[name] for name in SCENARIOS if name in known]
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps({"about": about, "outcomes": ordered}, indent=1) + "\n")
    page.write(path)


if __name__ == "__main__":
    sys.exit(main())
