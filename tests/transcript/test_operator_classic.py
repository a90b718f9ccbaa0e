"""A rebalance of a classic group that an operator asks for."""

from __future__ import annotations

from keylane.assignor.model import Lane
from keylane.proxy.apis.groups.rebalance import rebalance_group
from keylane.proxy.groups.rebalanced import Rebalanced
from tests.transcript.coordinator import GROUP, Coordinator, world
from tests.transcript.fake import FakeContext
from tests.transcript.test_load_checks import DESCRIBE, SAID, beat, described, skewed


def rates_with(hot: list[Lane]) -> dict[int, float]:
    """Bytes per second of each lane; the hot ones have most."""
    return {index: 300.0 if ("orders", index) in hot else 20.0 for index in range(8)}


def busiest(dealt: dict[str, list[Lane]], rates: dict[int, float]) -> float:
    """Load of the busiest of two members, in times of the mean."""
    loads = [sum(rates[index] for _, index in lanes) for lanes in dealt.values()]
    return max(loads) / (sum(loads) / 2)


async def ask_for_it(context: FakeContext, *, is_dry: bool) -> Rebalanced:
    """Ask for a rebalance of a stable group."""
    context.expect(DESCRIBE, None, described({"a": (SAID, b""), "b": (SAID, b"")}))
    return await rebalance_group(GROUP, context, is_dry=is_dry)


async def test_the_lanes_that_the_answer_names_move() -> None:
    """The load turns round before the group has joined again; rates of new partitions do so."""
    context = world()
    group = Coordinator(context)
    before = await group.deal({"a": SAID, "b": SAID})
    context.loads.rates["orders"] = rates_with(before["a"][:2])
    await beat(context, "a")
    shown, asked = [await ask_for_it(context, is_dry=is_dry) for is_dry in (True, False)]
    rates = context.loads.rates["orders"]
    context.loads.rates["orders"] = rates_with(before["b"][2:])
    after = await group.deal({"a": SAID, "b": SAID})

    assert (shown.is_asked, asked.is_asked) == (False, True)
    assert shown.moves == asked.moves != ()
    assert asked.balance is not None and asked.balance > busiest(after, rates)
    assert asked.balance_after == busiest(after, rates)
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
    assert (await ask_for_it(context, is_dry=False)).is_asked
    middle = await group.deal({"a": SAID, "b": SAID})
    await beat(context, "a", generation=2)

    rates = rates_with(middle["b"])
    context.loads.rates["orders"] = rates
    after = await group.deal({"a": SAID, "b": SAID})

    assert busiest(after, rates) < 1.05
