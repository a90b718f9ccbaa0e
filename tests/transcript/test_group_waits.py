"""A group's lock that is held for long: others are asked to come again, in a bounded time."""

from __future__ import annotations

import asyncio

from keylane.proxy.commits.group_states import LOCK_WAIT_S
from keylane.tasks import spawn
from tests.reference.crash_world import Kafka
from tests.transcript.crashing_node import GROUP, LANES, commit, offsets, offsets_and_codes, started
from tests.virtual_time import run_virtual

LOAD_IN_PROGRESS = 14


def test_a_request_that_waits_for_a_group_is_asked_to_come_again() -> None:
    """Nothing of it is sent or counted; once the lock is free, all is as before."""

    async def main() -> None:
        node = await started(Kafka())
        assert await commit(node, dict.fromkeys(range(LANES), 5)) == [0] * LANES
        clock, release = asyncio.get_running_loop().time, asyncio.Event()

        async def hold() -> None:
            async with node.groups.lock(GROUP):
                await release.wait()

        holding = spawn(hold(), "holds")
        await asyncio.sleep(0)
        began_s = clock()

        codes, found = await asyncio.gather(
            commit(node, {0: 9}), offsets_and_codes(node), return_exceptions=False
        )

        assert codes == [LOAD_IN_PROGRESS] and clock() - began_s <= 2 * LOCK_WAIT_S
        assert found == [(-1, LOAD_IN_PROGRESS)] * LANES
        release.set()
        await holding
        assert await offsets(node) == [5] * LANES
        assert await commit(node, {0: 9}) == [0]

    run_virtual(main)
