"""Range plans of the configuration: read once at the start, matched with the names they are for.

`assignor.range_plan` has the format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from keylane.assignor.range_plan import PLAN_BYTES_MAX, RangePlan, read_plan
from keylane.config.node import LaneRule
from keylane.errors import ConfigInvalid
from keylane.files import load_file
from keylane.keyrange.key_split import LaneCuts
from keylane.proxy.topics.agreement import compile_lane_names


def load_plans(rules: Sequence[LaneRule], *, lane_name_pattern: str | None) -> dict[str, LaneCuts]:
    """Read the plan of every rule that has one.

    Raises:
        ConfigInvalid: a file cannot be read, is no plan, or is one of another topic.
    """
    plans: dict[str, LaneCuts] = {}
    for number, rule in enumerate(rules):
        if rule.plan is None:
            continue
        place = f"lanes.{number}.plan: {rule.plan}"
        if rule.topic in plans:
            raise ConfigInvalid(f"{place}: topic {rule.topic} has a plan already")
        try:
            plan = load_file(Path(rule.plan), read_plan, PLAN_BYTES_MAX)
        except ConfigInvalid as error:
            raise ConfigInvalid(f"lanes.{number}.plan: {error}") from None
        _check_topic(place, rule.topic, plan, lane_name_pattern)
        hashed = next((other for other in rules if other.matches(plan.topic)), rule)
        if hashed.hash != "xxh64":
            raise ConfigInvalid(f"{place}: topic {plan.topic} has lanes by {hashed.hash}, uncut")
        plans[rule.topic] = LaneCuts.of(plan.cuts)
    return plans


def _check_topic(place: str, name: str, plan: RangePlan, pattern: str | None) -> None:
    """Check that the rule names the plan's topic, or a lane name of it with the plan's count."""
    if re.search(r"[*?\[\]!]", name):
        raise ConfigInvalid(f"{place}: a plan is of one topic ({plan.topic}), {name} may be many")
    if name == plan.topic:
        return
    match = compile_lane_names(pattern).fullmatch(name) if pattern else None
    if match is None or match["topic"] != plan.topic:
        raise ConfigInvalid(f"{place}: the plan is of topic {plan.topic}, the rule of {name}")
    if int(match["lanes"]) != plan.lane_count:
        raise ConfigInvalid(
            f"{place}: the plan has {plan.lane_count} lanes, the name {name} {match['lanes']}"
        )
