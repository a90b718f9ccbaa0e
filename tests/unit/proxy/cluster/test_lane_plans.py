"""Plan files of the configuration: whose lanes they cut, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from keylane.assignor.range_plan import RangePlan, write_plan
from keylane.config.node import LaneRule
from keylane.errors import ConfigInvalid
from keylane.proxy.cluster.lane_plans import load_plans

PATTERN = "{topic}.lanes-{lanes}"
PLAN = RangePlan(topic="orders", lane_count=3, cuts=((5, 9), (7, 8)), epoch=1)


def rule(tmp_path: Path, topic: str = "orders", data: bytes | None = None) -> LaneRule:
    """A rule with its own plan file."""
    path = tmp_path / "plan.json"
    path.write_bytes(write_plan(PLAN) if data is None else data)
    return LaneRule(topic=topic, plan=str(path))


def test_a_plan_cuts_each_partition_of_its_topic(tmp_path: Path) -> None:
    """Cuts are the first hashes of the lanes after the first, by partition."""
    rules = (LaneRule(topic="shop-*", lanes=4), rule(tmp_path))

    plans = load_plans(rules, lane_name_pattern=PATTERN)

    assert [split.cuts for split in plans["orders"].splits] == [(5, 9), (7, 8)]
    assert list(plans) == ["orders"]


def test_a_plan_may_be_of_a_lane_name_of_the_same_count(tmp_path: Path) -> None:
    """`orders.lanes-3` is cut by it, and `orders` stays as it is."""
    plans = load_plans([rule(tmp_path, "orders.lanes-3")], lane_name_pattern=PATTERN)

    assert list(plans) == ["orders.lanes-3"]


@pytest.mark.parametrize(
    ("topic", "pattern", "reason"),
    [
        ("shop", PATTERN, "the plan is of topic orders, the rule of shop"),
        ("order*", PATTERN, "may be many"),
        ("shop.lanes-3", PATTERN, "the rule of shop.lanes-3"),
        ("orders.lanes-4", PATTERN, "the plan has 3 lanes, the name orders.lanes-4 4"),
        ("orders.lanes-3", None, "the rule of orders.lanes-3"),
    ],
)
def test_a_plan_of_another_topic_is_refused(
    tmp_path: Path, topic: str, pattern: str | None, reason: str
) -> None:
    """The error names the place of the rule, the file and both names."""
    rules = (LaneRule(topic="a", lanes=1), rule(tmp_path, topic))

    with pytest.raises(ConfigInvalid, match=reason) as caught:
        load_plans(rules, lane_name_pattern=pattern)

    assert str(caught.value).startswith(f"lanes.1.plan: {tmp_path}")


def test_what_is_no_plan_is_refused_with_its_place(tmp_path: Path) -> None:
    """The reader's own words, behind rule and file; a file that is not there, too."""
    broken = write_plan(PLAN).replace(b'"9"', b'"4"')
    with pytest.raises(ConfigInvalid, match=r"lanes\.0\.plan: .*plan\.json: plan: cuts\.0: must"):
        load_plans([rule(tmp_path, data=broken)], lane_name_pattern=PATTERN)

    absent = LaneRule(topic="orders", plan=str(tmp_path / "absent.json"))
    with pytest.raises(ConfigInvalid, match=r"absent\.json: No such file"):
        load_plans([absent], lane_name_pattern=PATTERN)


def test_a_second_plan_of_a_topic_is_refused(tmp_path: Path) -> None:
    """Two plans leave open which one is meant."""
    with pytest.raises(ConfigInvalid, match=r"lanes\.1\.plan: .* has a plan already"):
        load_plans([rule(tmp_path), rule(tmp_path)], lane_name_pattern=PATTERN)


def test_a_plan_of_a_lane_name_needs_a_topic_that_can_be_cut(tmp_path: Path) -> None:
    """All names of a topic have the hash of one rule, and lanes by murmur2 have no cuts."""
    rules = (LaneRule(topic="orders", lanes=6, hash="murmur2"), rule(tmp_path, "orders.lanes-3"))

    with pytest.raises(ConfigInvalid, match=r"lanes.1.plan: .* orders has lanes by murmur2"):
        load_plans(rules, lane_name_pattern=PATTERN)
