"""Hostile inputs at keylane's decoders, millions of them, in child processes.

In:    a seed, numbers of inputs.  Out: `Tally`: by decoder how many, how long, what was wrong.

A finding is an exception that is none of the declared ones, an input that takes longer than a
second, a child that dies or comes to no end (its input is known by its number), or memory that
grows beyond the bound.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.fuzz.mutate import make_input, minimise, seed_inputs
from tests.fuzz.targets import TARGETS, run_one

SECONDS_MAX: Final = 1.0
STUCK_S: Final = 15.0
"""Seconds after which an input counts as stuck."""
RSS_GROWTH_MIB: Final = 300
"""Growth of the child after the first thousand inputs; a split alone may hold 1 MiB."""
LOG_INTERVAL_S: Final = 60.0
WARM_INPUTS: Final = 1000
FINDINGS_MAX: Final = 50
"""Kinds of them; the run ends there."""
CORPUS: Final = Path(__file__).parent.parent / "fuzz" / "corpus"
CORPUS_FILE_BYTES_MAX: Final = 4096
NOTHING: Final = -1


@dataclass(slots=True)
class Finding:
    """An input that a decoder does not take as it should."""

    number: int
    target: str
    text: str
    data: bytes = b""

    @property
    def kind(self) -> tuple[str, str]:
        """Decoder, and what was wrong, as far as it is alike."""
        return self.target, self.text.partition(":")[0]


@dataclass(slots=True)
class Tally:
    """Results of the inputs so far."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts by decoder and outcome: "read", "refused" or "finding"."""
    seconds: Counter[str] = field(default_factory=Counter)
    worst_s: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    """The first of each kind."""
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Counts by decoder and kind of finding."""
    rss_mib: float = 0.0
    rss_growth_mib: float = 0.0
    next_number: int = 0

    @property
    def inputs(self) -> int:
        """Return how many there were."""
        return sum(self.counts.values())

    def found(self, finding: Finding) -> None:
        """Count a finding, keep the first of its kind."""
        if finding.kind not in self.kinds:
            self.findings.append(finding)
        self.kinds[finding.kind] += 1

    def add(self, other: Tally) -> None:
        """Those of another child, which came after."""
        self.counts += other.counts
        for name, seconds in other.seconds.items():
            self.seconds[name] += seconds
        for name, worst_s in other.worst_s.items():
            self.worst_s[name] = max(worst_s, self.worst_s.get(name, 0.0))
        for finding in other.findings:
            if finding.kind not in self.kinds:
                self.findings.append(finding)
        self.kinds += other.kinds
        self.rss_mib = max(self.rss_mib, other.rss_mib)
        self.rss_growth_mib = max(self.rss_growth_mib, other.rss_growth_mib)
        self.next_number = other.next_number


def try_input(tally: Tally, number: int, data: bytes) -> None:
    """Give one input to its decoder."""
    name = TARGETS[data[0] % len(TARGETS)].__name__
    started_s = time.process_time()  # of this process alone: the machine may be busy
    try:
        outcome = run_one(data)
    except Exception as error:  # noqa: BLE001 - which is what is looked for
        outcome = "finding"
        text = f"{type(error).__name__}: {str(error)[:120]}"
        tally.found(Finding(number, name, text, data))
    took_s = time.process_time() - started_s
    if took_s > SECONDS_MAX:
        tally.found(Finding(number, name, f"slow: took {took_s:.1f} s", data))
    tally.counts[name, outcome] += 1
    tally.seconds[name] += took_s  # type: ignore[assignment]
    tally.worst_s[name] = max(took_s, tally.worst_s.get(name, 0.0))


def run_numbers(
    seed: int, first: int, end: int, *, deadline_s: float, note: Callable[[int], None]
) -> Tally:
    """Try inputs of these numbers, in this process. `note` gets each number before it is tried."""
    tally = Tally(next_number=first)
    _warm_up()
    settled_mib = 0.0
    for number in range(first, end):
        note(number)
        try_input(tally, number, make_input(seed, number))
        tally.next_number = number + 1
        if number - first == WARM_INPUTS:
            settled_mib = peak_mib()
        if len(tally.findings) >= FINDINGS_MAX or time.monotonic() > deadline_s:
            break
    tally.rss_mib = peak_mib()
    tally.rss_growth_mib = tally.rss_mib - settled_mib if settled_mib else 0.0
    return tally


def _warm_up() -> None:
    """Compile kernels and import schemas: that is no input's doing."""
    for known in seed_inputs():
        for data in known:
            run_one(data)


def peak_mib() -> float:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_parsers(
    seed: int, inputs: int, deadline_s: float, reported: Callable[[str], None]
) -> Tally:
    """Try all inputs, in as many children, one after the other, as it takes."""
    total, number = Tally(), 0
    while number < inputs and time.monotonic() < deadline_s:
        total.add(_run_child(seed, number, inputs, deadline_s, reported))
        number = total.next_number
        reported(f"parsers: {number} of {inputs}, {len(total.findings)} kinds of findings")
        if len(total.findings) >= FINDINGS_MAX:
            break
    if total.rss_growth_mib > RSS_GROWTH_MIB:
        text = f"memory grew by {total.rss_growth_mib:.0f} MiB"
        total.found(Finding(NOTHING, "all", text))
    return total


def _run_child(
    seed: int, first: int, inputs: int, deadline_s: float, reported: Callable[[str], None]
) -> Tally:
    """One child, and what it came to; where it died or hung that is a finding."""
    spawn = multiprocessing.get_context("spawn")
    current = spawn.Value("q", NOTHING)
    theirs, ours = spawn.Pipe()
    arguments = (seed, first, inputs, deadline_s, current, ours)
    child = spawn.Process(target=_work, args=arguments, daemon=True)
    child.start()
    ours.close()
    try:
        tally = _await(theirs, current, reported)
    finally:
        if child.is_alive():
            child.join(1)
        if child.is_alive() and child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
        child.join()
    if tally is not None:
        return tally
    number = max(current.value, first)
    data = make_input(seed, number)
    name = TARGETS[data[0] % len(TARGETS)].__name__
    # SIGKILL is ours, for one that hung.
    text = "came to no end" if child.exitcode == -signal.SIGKILL else f"died: {child.exitcode}"
    tally = Tally(Counter({(name, "finding"): number - first + 1}), next_number=number + 1)
    tally.found(Finding(number, name, text, data))
    return tally


def _await(results: Any, current: Any, reported: Callable[[str], None]) -> Tally | None:
    """The child's tally; None: it died, or has been at one input for too long."""
    number, since_s = NOTHING, time.monotonic()
    known_s = since_s
    while not results.poll(1.0):
        now_s = time.monotonic()
        if now_s - known_s > LOG_INTERVAL_S:
            reported(f"parsers: at input {current.value}")
            known_s = now_s
        if current.value != number or number == NOTHING:
            number, since_s = current.value, now_s
        elif now_s - since_s > STUCK_S:
            return None
    try:
        found = results.recv()
    except EOFError:
        return None
    assert isinstance(found, Tally)
    return found


def _work(
    seed: int, first: int, inputs: int, deadline_s: float, current: Any, results: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides

    def note(number: int) -> None:
        current.value = number

    results.send(run_numbers(seed, first, inputs, deadline_s=deadline_s, note=note))
    results.close()


def fails_alike(finding: Finding) -> Callable[[bytes], bool]:
    """Return whether an input raises the same exception."""
    kind = finding.text.partition(":")[0]

    def fails(data: bytes) -> bool:
        try:
            run_one(data)
        except Exception as error:  # noqa: BLE001 - which is what is looked for
            return type(error).__name__ == kind
        return False

    return fails


def keep(finding: Finding) -> Path | None:
    """Put a finding into the corpus, as short as it gets; None: it is too long, or no exception."""
    fails = fails_alike(finding)
    if not finding.data or not fails(finding.data):
        return None
    data = minimise(finding.data, fails)
    if len(data) > CORPUS_FILE_BYTES_MAX:
        return None
    name = hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]
    path = CORPUS / f"finding-{name}"
    path.write_bytes(data)
    return path
