"""Read the place behind a stable offset, where no scan of it comes.

The read is for the scan alone: no client gets its records.
"""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from keylane.errors import UpstreamLost
from keylane.proxy.commits.late_pushes import LatePush
from keylane.proxy.lanes.fetch_request import LaneAnswer, LaneFetch, LaneFetchRequest
from keylane.proxy.lanes.fetcher import LaneFetcher
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.offsets")

WAIT_MS: Final = 500
"""Enough for what is in the log; at its end there is nothing to wait for."""
READ_UNCOMMITTED: Final = 0


class Ends(Protocol):
    """Questions to leaders."""

    async def log_start(self, view: View, partition: int) -> int:
        """The partition's first offset. Raises: UpstreamLost."""
        ...


async def read_behind(late: LatePush, fetcher: LaneFetcher, ends: Ends) -> None:
    """Read one block, as if a client had asked for it; from where the log begins, if further on.

    What a broker did not answer well, or in time, is to be read again.
    """
    at = late.position
    answer = await _read(late, at, fetcher)
    if answer.error_code == ErrorCode.offset_out_of_range:
        try:
            at = max(at, await ends.log_start(late.view, late.partition))
        except UpstreamLost as error:
            log.debug("not read behind topic=%s reason=%s", late.view.topic, error)
        else:
            answer = await _read(late, at, fetcher)
    if answer.error_code or answer.high_watermark > at:
        late.want_read(time.monotonic())


async def _read(late: LatePush, offset: int, fetcher: LaneFetcher) -> LaneAnswer:
    lane = LaneFetch(
        topic=late.view.topic,
        topic_id=late.view.topic_id,
        partition=late.partition,
        output=0,
        key_split=late.view.key_split(late.partition),
        fetch_offset=offset,
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
    (answer,) = await fetcher.fetch(request)
    fetcher.release(request.cursor_id)
    return answer
