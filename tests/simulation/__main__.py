"""Play seeds of the simulation: `python -m tests.simulation --seeds 0-1000`.

In:    flags.  Out: one line for each seed that fails, with how to see it again; exit code 1 if any.

A seed that failed: `--seed N` prints its story, `--seed N --shrink` that of the smallest scenario
that fails as well. `--mutations` shows which seed finds each of the mistakes in `mutations`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext

from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import Outcome, play
from tests.simulation.scenario import Scenario, draw
from tests.simulation.shrink import shrink

CHUNK = 20
FINDINGS_SHOWN = 5


def main() -> int:
    """Exit code 1: a seed failed, or a mutation was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", default="0-200", metavar="FROM-TO", help="TO is not played")
    parser.add_argument("--seed", type=int, help="play one, and print its story")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--mutations", action="store_true", help="which seed finds each mistake")
    parser.add_argument("--only", help="mutations whose name has this in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    first, last = map(int, args.seeds.split("-"))
    if args.mutations:
        return _show_mutations(range(first, last), args.only or "", args.jobs)
    if args.seed is not None:
        return _show(args.seed, smallest=args.shrink, mutation=args.only)
    return _play_all(range(first, last), args.jobs)


def kinds(outcome: Outcome) -> set[str]:
    """Return the kinds of breaches, without the particulars."""
    return {breach.split(":")[0].split(" ")[-1] for breach in outcome.breaches}


def _show(seed: int, *, smallest: bool, mutation: str | None) -> int:
    found = next((each for each in MUTATIONS if each.name == mutation), None)
    with nullcontext() if found is None else found.apply():
        outcome = play(draw(seed), level=logging.INFO)
        if smallest and outcome.breaches:
            wanted = kinds(outcome)

            def fails(scenario: Scenario) -> bool:
                return bool(kinds(play(scenario)) & wanted)

            outcome = play(shrink(draw(seed), fails), level=logging.INFO)
    print(*outcome.story, sep="\n")
    print(outcome.scenario)
    print(f"counts: {outcome.counts}; notes: {len(outcome.notes)}")
    print(*[f"BREACH {breach}" for breach in outcome.breaches] or ["no breach"], sep="\n")
    return bool(outcome.breaches)


def _play_chunk(seeds: range) -> tuple[list[tuple[int, list[str]]], Counter[str]]:
    failed, counts = [], Counter[str]()
    for seed in seeds:
        outcome = play(draw(seed))
        counts.update(outcome.counts)
        counts["notes"] += len(outcome.notes)
        if outcome.breaches:
            failed.append((seed, outcome.breaches))
    return failed, counts


def _chunks(seeds: range) -> Iterator[range]:
    return (seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK))


def _play_all(seeds: range, jobs: int) -> int:
    started_s, failed, counts = time.monotonic(), 0, Counter[str]()
    with ProcessPoolExecutor(jobs) as pool:
        for number, (found, chunk_counts) in enumerate(pool.map(_play_chunk, _chunks(seeds)), 1):
            counts += chunk_counts
            failed += len(found)
            for seed, breaches in found:
                print(f"seed {seed}: {len(breaches)} breaches, see --seed {seed} --shrink")
                print(*[f"  {each[:300]}" for each in breaches[:FINDINGS_SHOWN]], sep="\n")
            if sys.stdout.isatty() or number % 50 == 0:
                print(f"{number * CHUNK} of {len(seeds)}, {failed} failed", flush=True)
    took_s = time.monotonic() - started_s
    print(f"{len(seeds)} schedules in {took_s:.0f} s, {failed} failed; {dict(counts)}")
    return int(failed > 0)


def _find(name: str, seeds: range) -> tuple[int | None, list[str]]:
    """The first seed that finds a mistake, and has no breach without it; what it says."""
    mutation = next(each for each in MUTATIONS if each.name == name)
    for seed in seeds:
        with mutation.apply():
            outcome = play(draw(seed))
        if outcome.breaches and not play(draw(seed)).breaches:
            return seed, outcome.breaches
    return None, []


def _show_mutations(seeds: range, only: str, jobs: int) -> int:
    wanted = [mutation for mutation in MUTATIONS if only in mutation.name]
    missed = 0
    with ProcessPoolExecutor(jobs) as pool:
        pending = [(each, pool.submit(_find, each.name, seeds)) for each in wanted]
        print("| invariant | mistake | schedules | what is said |\n|---|---|---|---|")
        for mutation, future in pending:
            seed, breaches = future.result()
            missed += seed is None
            count = f"not in {len(seeds)}" if seed is None else str(seed - seeds.start + 1)
            said = breaches[0][:120] if breaches else ""
            print(f"| {mutation.invariant} | {mutation.name} | {count} | {said} |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
