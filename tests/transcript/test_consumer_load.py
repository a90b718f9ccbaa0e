"""Lanes of a KIP-848 group that move for their load alone: finely once, then by a tenth."""

from __future__ import annotations

from tests.transcript.fake import FakeContext
from tests.transcript.lane_group import ALL, beat, given, hand_over, lanes, partial, start, takes

LOOK_S = 60.0
"""A tenth of `load_rebalance_interval_s`."""


async def settle(context: FakeContext, epoch: int, held: dict[str, list[int]]) -> None:
    """Have both members beat until nothing more is to change hands; `held` follows."""
    for member in "ab" * 4:
        takes(context, epoch, member_id=member)
        answer = given(await beat(context, partial(member, epoch, lanes(*held[member]))))
        held[member] = held[member] if answer is None else answer


def weigh(context: FakeContext, heavy: int, light: int) -> None:
    """A lane with a tenth more than the others, and one with a tenth less."""
    rates = dict.fromkeys(ALL, 1000.0) | {heavy: 1100.0, light: 900.0}
    context.loads.rates["orders"] = rates


async def test_lanes_are_evened_out_finely_once_their_load_is_known() -> None:
    """At 1.025 of the mean: a plan by members alone is made up for; the next such one stays."""
    context = FakeContext()
    await start(context)
    kept, got = await hand_over(context)
    held = {"a": kept, "b": got}
    weigh(context, kept[0], got[0])
    context.world.now_s += LOOK_S

    await settle(context, 2, held)
    loads = [sum(context.loads.rates["orders"][index] for index in held[m]) for m in "ab"]
    moved = context.stats.lane_moves["load"]
    weigh(context, held["a"][0], held["b"][0])
    context.world.now_s += LOOK_S
    before = {name: list(indexes) for name, indexes in held.items()}
    await settle(context, 2, held)

    assert loads == [4000.0, 4000.0]
    assert moved == 2
    assert held == before and context.stats.lane_moves["load"] == moved


async def test_a_fine_plan_waits_until_the_load_is_no_chance() -> None:
    """At 1.025 of the mean, of a few hundred records: nothing moves."""
    context = FakeContext()
    await start(context)
    kept, got = await hand_over(context)
    held = {"a": kept, "b": got}
    weigh(context, kept[0], got[0])
    rates = context.loads.rates["orders"]
    context.loads.rates["orders"] = {index: rate / 10_000 for index, rate in rates.items()}
    context.world.now_s += LOOK_S

    await settle(context, 2, held)

    assert held == {"a": kept, "b": got}
    assert context.stats.lane_moves["load"] == 0
