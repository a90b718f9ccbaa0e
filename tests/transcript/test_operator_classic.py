"""A rebalance of a classic group that an operator asks for."""

from __future__ import annotations

from keylane.assignor.model import Lane
from keylane.proxy.apis.groups.rebalance import rebalance_group
from tests.transcript.coordinator import GROUP, Coordinator, world
from tests.transcript.test_load_checks import DESCRIBE, SAID, beat, described, skewed


def rates_with(hot: list[Lane]) -> dict[int, float]:
    """Bytes per second of each lane; the hot ones have most."""
    return {index: 300.0 if ("orders", index) in hot else 20.0 for index in range(8)}


async def test_the_lanes_that_the_answer_names_move() -> None:
    """The load turns round before the group has joined again; rates of new partitions do so."""
    context = world()
    group = Coordinator(context)
    before = await group.deal({"a": SAID, "b": SAID})
    context.loads.rates["orders"] = rates_with(before["a"][:2])
    await beat(context, "a")
    context.expect(DESCRIBE, None, described({"a": (SAID, b""), "b": (SAID, b"")}))

    asked = await rebalance_group(GROUP, context, is_dry=False)
    context.loads.rates["orders"] = rates_with(before["b"][2:])
    after = await group.deal({"a": SAID, "b": SAID})

    assert asked.is_asked and asked.moves
    assert {(each.lane_index, each.from_member, each.to_member) for each in asked.moves} == {
        (index, giver, receiver)
        for giver, receiver in (("a", "b"), ("b", "a"))
        for _, index in set(before[giver]) & set(after[receiver])
    }


async def test_the_generation_behind_it_goes_by_the_load_of_its_own_time() -> None:
    """The answer is kept for one generation."""
    context = world()
    group = await skewed(context)
    await beat(context, "a")
    context.expect(DESCRIBE, None, described({"a": (SAID, b""), "b": (SAID, b"")}))
    assert (await rebalance_group(GROUP, context, is_dry=False)).is_asked
    middle = await group.deal({"a": SAID, "b": SAID})
    await beat(context, "a", generation=2)

    rates = rates_with(middle["b"])
    context.loads.rates["orders"] = rates
    after = await group.deal({"a": SAID, "b": SAID})

    loads = [sum(rates[index] for _, index in after[name]) for name in "ab"]
    assert max(loads) < 1.1 * min(loads)
