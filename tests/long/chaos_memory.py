"""Resident memory of nodes during a run of chaos.

In:    running nodes, after each round.  Out: faults in words: a node that grew.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.long.watch import resident_mib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.keylane_process import KeylaneProcess

GROWTH_MAX: Final = 1.1
WARM_S: Final = 120.0
"""A process that starts has yet to meet each kind of request once."""
SHARE: Final = 10
"""The first and the last tenth of a process's time are compared."""
SAMPLES_MIN: Final = 5
"""Samples needed in each of the two; a process that lived for less is not judged."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process."""

    at_s: float
    mib: float


@dataclass(slots=True)
class Memory:
    """Samples by node and process: a node that was killed begins anew."""

    samples: dict[tuple[int, int], list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def note(self, nodes: Sequence[KeylaneProcess], now_s: float) -> None:
        """Look at all that run."""
        for number, node in enumerate(nodes):
            if node.running:
                self.samples[number, node.pid].append(Sample(now_s, resident_mib(node.pid)))

    def lines(self) -> list[str]:
        """Return a line for each node, on its process that lived longest."""
        longest: dict[int, list[Sample]] = {}
        for (number, _), samples in sorted(self.samples.items()):
            if _lived_s(samples) >= _lived_s(longest.get(number, samples)):
                longest[number] = samples
        return [
            f"node {number}: {samples[0].mib:.0f} to {samples[-1].mib:.0f} MiB in"
            f" {_lived_s(samples) / 60:.0f} minutes, at most {max(s.mib for s in samples):.0f}"
            for number, samples in longest.items()
        ]

    def faults(self) -> list[str]:
        """Processes that grew."""
        found = []
        for (number, _), samples in self.samples.items():
            warm = [each for each in samples if each.at_s >= samples[0].at_s + WARM_S]
            count = len(warm) // SHARE
            if count < SAMPLES_MIN:
                continue
            before = statistics.median(each.mib for each in warm[:count])
            after = statistics.median(each.mib for each in warm[-count:])
            if after > before * GROWTH_MAX:
                found.append(f"memory: node {number} grew from {before:.0f} to {after:.0f} MiB")
        return found


def _lived_s(samples: Sequence[Sample]) -> float:
    return samples[-1].at_s - samples[0].at_s
