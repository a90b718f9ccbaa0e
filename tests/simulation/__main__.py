"""Play seeds of the simulation: `python -m tests.simulation --seeds 0-1000`.

A seed that failed: `--seed N` prints its story, `--seed N --shrink` that of the smallest scenario
that fails as well. `--mutations` shows which seed finds each of the mistakes in `mutations`.
`--shares` plays schedules of share groups, whose seeds are others, `--received` those with the
setting `confirm: received`, and `--hand-overs` those of nodes that stop and join under them.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial

from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import Outcome, play
from tests.simulation.scenario import Scenario, draw
from tests.simulation.share_mutations import SHARES
from tests.simulation.share_schedule import draw_hand_overs, draw_received, draw_shares
from tests.simulation.shrink import shrink

DRAWS = {
    "": draw, "shares": draw_shares, "hand-overs": draw_hand_overs, "received": draw_received,
}  # fmt: skip
"""Schedules by kind."""
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
    parser.add_argument(
        "--shares", dest="kind", action="store_const", const="shares", default="",
        help="schedules of share groups",
    )  # fmt: skip
    parser.add_argument(
        "--hand-overs", dest="kind", action="store_const", const="hand-overs",
        help="schedules of share groups whose nodes stop and join",
    )  # fmt: skip
    parser.add_argument(
        "--received", dest="kind", action="store_const", const="received",
        help="schedules of share groups with `confirm: received`",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    first, last = map(int, args.seeds.split("-"))
    if args.mutations:
        wanted = [each for each in _mistakes(args.kind) if (args.only or "") in each.name]
        return _show_mutations(range(first, last), wanted, args.kind, args.jobs)
    if args.seed is not None:
        found = next((each for each in _mistakes(args.kind) if each.name == args.only), None)
        return _show(_draw(args.kind, args.seed), smallest=args.shrink, mutation=found)
    return _play_all(range(first, last), args.kind, args.jobs)


def _draw(kind: str, seed: int) -> Scenario:
    return DRAWS[kind](seed)


def _mistakes(kind: str) -> Sequence[Mutation]:
    return SHARES if kind else MUTATIONS


def kinds(outcome: Outcome) -> set[str]:
    """Return the kinds of breaches, without the particulars."""
    return {breach.split(":")[0].split(" ")[-1] for breach in outcome.breaches}


def _show(drawn: Scenario, *, smallest: bool, mutation: Mutation | None) -> int:
    with nullcontext() if mutation is None else mutation.apply():
        outcome = play(drawn, level=logging.INFO)
        if smallest and outcome.breaches:
            wanted = kinds(outcome)

            def fails(scenario: Scenario) -> bool:
                return bool(kinds(play(scenario)) & wanted)

            outcome = play(shrink(drawn, fails), level=logging.INFO)
    print(*outcome.story, sep="\n")
    print(outcome.scenario)
    print(f"counts: {outcome.counts}; notes: {len(outcome.notes)}")
    print(*[f"BREACH {breach}" for breach in outcome.breaches] or ["no breach"], sep="\n")
    return bool(outcome.breaches)


def _play_chunk(kind: str, seeds: range) -> tuple[list[tuple[int, list[str]]], Counter[str]]:
    failed, counts = [], Counter[str]()
    for seed in seeds:
        outcome = play(_draw(kind, seed))
        counts.update(outcome.counts)
        counts["notes"] += len(outcome.notes)
        if outcome.breaches:
            failed.append((seed, outcome.breaches))
    return failed, counts


def _chunks(seeds: range) -> Iterator[range]:
    return (seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK))


def _play_all(seeds: range, kind: str, jobs: int) -> int:
    started_s, failed, counts = time.monotonic(), 0, Counter[str]()
    with ProcessPoolExecutor(jobs) as pool:
        played = pool.map(partial(_play_chunk, kind), _chunks(seeds))
        for number, (found, chunk_counts) in enumerate(played, 1):
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


def _find(name: str, kind: str, seeds: range) -> tuple[int | None, list[str]]:
    """The first seed that finds a mistake, and has no breach without it; what it says."""
    mutation = next(each for each in _mistakes(kind) if each.name == name)
    for seed in seeds:
        with mutation.apply():
            outcome = play(_draw(kind, seed))
        if outcome.breaches and not play(_draw(kind, seed)).breaches:
            return seed, outcome.breaches
    return None, []


def _show_mutations(seeds: range, wanted: Sequence[Mutation], kind: str, jobs: int) -> int:
    missed = 0
    with ProcessPoolExecutor(jobs) as pool:
        pending = [(each, pool.submit(_find, each.name, kind, seeds)) for each in wanted]
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
