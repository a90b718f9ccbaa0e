"""Lanes cut by a plan, per partition: keys of members, commits over restarts and new plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from keylane.assignor.range_plan import RangePlan, write_plan
from keylane.embedded.child import ChildEnded
from keylane.keyrange.hash import key_hash
from tests.integration.harness import Group, produce
from tests.integration.share_wire import wait_until
from tests.integration.test_group_handover import log_ends, stable_offsets

KEYS = [f"key-{number}" for number in range(200)]
HASHES = sorted(key_hash(key.encode()) for key in KEYS)
LIBRARIES = ("aiokafka", "confluent", "kafka-python")


def plan_of(topic: str, epoch: int, *shares: tuple[float, ...]) -> RangePlan:
    """Cuts of each partition so that its lanes begin at these shares of all keys."""
    cuts = tuple(tuple(HASHES[int(share * len(HASHES))] for share in row) for row in shares)
    return RangePlan(topic=topic, lane_count=len(shares[0]) + 1, cuts=cuts, epoch=epoch)


def run_group(
    kafka: str,
    bootstrap: str,
    plan: RangePlan,
    write: Callable[[], list[str]],
    libraries: Sequence[str] = LIBRARIES,
) -> None:
    """Stock members read exactly what is written, once, each lane the keys that the plan says.

    write: is called when each member has its lanes. While members come, a lane with records goes
    from one to another in the middle of a key.
    """
    with Group(bootstrap, plan.topic, f"g-{plan.topic}") as group:
        for library in libraries:
            group.add(library)
        group.wait_for_lanes(plan.partition_count * plan.lane_count)
        values = write()
        group.wait_for_values(values)
        group.wait_for_commits()
        # It may follow the last commit with a heartbeat, so while there are members.
        wait_until(
            lambda: (
                stable_offsets(kafka, f"g-{plan.topic}", plan.topic, plan.partition_count)
                == log_ends(kafka, plan.topic, plan.partition_count)
            ),
            "stable offsets at the ends of the logs",
        )
    seen = group.seen
    assert sorted(seen.values().elements()) == sorted(values)
    seen.assert_keys_in_order()
    seen.assert_nothing_committed_again()
    layout = plan.layout()
    for one in seen.sightings:
        partition, lane = layout.partition_of(one.lane), layout.lane_of(one.lane)
        assert one.key is not None
        assert layout.key_range(partition, lane).contains(key_hash(one.key.encode())), one


def test_plans_cut_lanes_and_follow_each_other(kafka, keylane, topic, tmp_path: Path) -> None:
    """Uneven cuts per partition; a restart and the next plan lose nothing, repeat nothing."""
    name = topic("orders", partitions=2)
    path, config = tmp_path / "plan.json", tmp_path / "keylane.yaml"
    first = plan_of(name, 1, (0.5, 0.6, 0.95), (0.05, 0.1, 0.2))
    second = plan_of(name, 2, (0.1, 0.2, 0.3), (0.3, 0.8, 0.9))
    path.write_bytes(write_plan(first))
    config.write_text("accept_layout: []\n", encoding="utf-8")
    proxy = keylane(f"{name}={path}", args=["--config", str(config)])

    run_group(kafka, proxy.bootstrap, first, partial(produce, kafka, name, KEYS, 10))
    proxy.restart()
    run_group(kafka, proxy.bootstrap, first, partial(produce, kafka, name, KEYS, 10, first=10))

    proxy.stop()
    path.write_bytes(write_plan(second))
    values = produce(kafka, name, KEYS, 10, first=20)
    with pytest.raises(ChildEnded, match="cut at other hashes than now"):
        proxy.start()
    config.write_text(f"accept_layout: [{name}]\n", encoding="utf-8")
    proxy.start()
    run_group(kafka, proxy.bootstrap, second, lambda: values, LIBRARIES[:1])
    run_group(kafka, proxy.bootstrap, second, partial(produce, kafka, name, KEYS, 10, first=30))


def test_a_plan_for_other_partitions_is_not_served(kafka, keylane, topic, tmp_path: Path) -> None:
    """Only this topic is refused, with an error to clients and a reason in the log."""
    name, plain = topic("orders", partitions=3), topic("plain", partitions=1)
    path = tmp_path / "plan.json"
    path.write_bytes(write_plan(plan_of(name, 1, (0.5,), (0.5,))))
    values = produce(kafka, plain, KEYS[:5], 1)

    proxy = keylane(f"{name}={path}")

    with Group(proxy.bootstrap, name, f"g-{name}") as group:
        group.add("confluent")
        group.wait(
            lambda seen: any("authoriz" in str(each).lower() for _, each in seen.events),
            timeout_s=60,
            what="a refusal",
        )
    proxy.wait_for_log(f"the plan of {name} is for 2 partitions, topic {name} has 3")
    with Group(proxy.bootstrap, plain, f"g-{plain}") as others:
        others.add("confluent")
        others.wait_for_values(values)

    assert not group.seen.sightings
    assert others.seen.values() == dict.fromkeys(values, 1)
