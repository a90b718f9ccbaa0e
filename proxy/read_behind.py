"""Have the place behind a stable offset looked at, where nobody tells what is there.

In:    a `LatePush` that is overdue.  Out: a read of the partition there, whose records nobody gets.
Next:  its reader tells what it scanned, as ever; `late_pushes` hears of it.
Shell: asyncio.
"""

from __future__ import annotations

from typing import Final

from keylane.proxy.lane_fetch import LaneFetch, LaneFetcher, LaneFetchRequest
from keylane.proxy.late_pushes import LatePush

WAIT_MS: Final = 500
"""Enough for what is in the log; at its end there is nothing to wait for."""
READ_UNCOMMITTED: Final = 0


async def read_behind(late: LatePush, fetcher: LaneFetcher) -> None:
    """Read one block, as if a client had asked for it. An error of the partition is left alone."""
    lane = LaneFetch(
        topic=late.view.topic,
        topic_id=late.view.topic_id,
        partition=late.partition,
        lane=0,
        key_split=late.view.key_split(late.partition),
        fetch_offset=late.position,
        partition_max_bytes=1,
        reserve=late.view.reserve,
    )
    request = LaneFetchRequest(
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=1,
        isolation_level=READ_UNCOMMITTED,
        lanes=(lane,),
        cursor_id=f"behind {late.view.name} {late.partition}",  # no client's connection
    )
    await fetcher.fetch(request)
    fetcher.release(request.cursor_id)
