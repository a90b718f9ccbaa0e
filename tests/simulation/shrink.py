"""Look for a smaller scenario that fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.scenario import Scenario

Fails = Callable[[Scenario], bool]


def shrink(scenario: Scenario, fails: Fails) -> Scenario:
    """Take away what is not needed to fail. Cost: some 50 runs."""
    while True:
        for smaller in _smaller(scenario):
            if fails(smaller):
                scenario = smaller
                break
        else:
            return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with less in them, the largest steps first."""
    faults = scenario.faults
    half = len(faults) // 2
    if half:
        yield replace(scenario, faults=faults[half:])
        yield replace(scenario, faults=faults[:half])
    for number in range(len(faults)):
        yield replace(scenario, faults=faults[:number] + faults[number + 1 :])
    for number in range(len(scenario.groups)):
        if len(scenario.groups) > 1:
            groups = scenario.groups[:number] + scenario.groups[number + 1 :]
            yield replace(scenario, groups=groups)
    used = {group.topic for group in scenario.groups}
    topics = tuple(topic for topic in scenario.topics if topic.name in used)
    if len(topics) < len(scenario.topics):
        yield replace(scenario, topics=topics)
    for number, group in enumerate(scenario.groups):
        if group.members > 1:
            less = replace(group, members=group.members - 1)
            groups = (*scenario.groups[:number], less, *scenario.groups[number + 1 :])
            yield replace(scenario, groups=groups)
    for number, plan in enumerate(scenario.shares):
        others = scenario.shares[:number], scenario.shares[number + 1 :]
        if len(scenario.shares) > 1:
            yield replace(scenario, shares=(*others[0], *others[1]))
        if plan.members > 1:
            fewer = replace(plan, members=plan.members - 1)
            yield replace(scenario, shares=(*others[0], fewer, *others[1]))
    if scenario.nodes > 2:
        yield replace(scenario, nodes=scenario.nodes - 1)
