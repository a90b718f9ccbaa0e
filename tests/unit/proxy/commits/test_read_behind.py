"""Places behind stable offsets that no news comes of are read, until there is an answer."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.errors import UpstreamLost
from keylane.proxy.commits.late_pushes import PATIENCE_S, LatePush, read_behind
from keylane.proxy.lanes.fetch_request import LaneAnswer
from tests.transcript.fake import FakeContext

OUT_OF_RANGE, NOT_LEADER = 1, 6
AT = 5


class Reads:
    """Gives an answer for each offset, as (error code, high watermark)."""

    def __init__(self, answers: dict[int, tuple[int, int]]) -> None:
        self.answers, self.asked = answers, list[int]()
        self.released = 0

    async def fetch(self, request: Any) -> list[LaneAnswer]:
        (lane,) = request.lanes
        self.asked.append(lane.fetch_offset)
        error_code, end = self.answers[lane.fetch_offset]
        return [LaneAnswer(error_code, end, end, -1, None, (), 0)]

    def release(self, _cursor_id: str) -> None:
        self.released += 1


class Leader:
    """Says where the log begins; None: it does not answer."""

    def __init__(self, start: int | None) -> None:
        self.start = start

    async def log_start(self, _view: Any, _partition: int) -> int:
        if self.start is None:
            raise UpstreamLost("no answer")
        return self.start


async def read(answers: dict[int, tuple[int, int]], start: int | None = 0) -> tuple[LatePush, Any]:
    view = FakeContext().lanes("orders")
    late = LatePush(view=view, partition=0, position=AT, since_s=0.0, push=lambda: None)
    late.is_read = True  # as `LatePushes.overdue` leaves it
    reads = Reads(answers)
    await read_behind(late, reads, Leader(start).log_start)  # type: ignore[arg-type]
    assert reads.released == len(reads.asked)
    return late, reads


async def test_the_end_of_the_log_is_looked_at_once() -> None:
    """What comes behind it is read by members, or another commit moves the place."""
    late, reads = await read({AT: (0, AT)})

    assert late.is_read and reads.asked == [AT]


@pytest.mark.parametrize("answer", [(NOT_LEADER, -1), (0, AT + 1)])
async def test_an_error_or_a_read_that_took_too_long_is_read_again(answer: Any) -> None:
    """The leader moved, or its answer is still on its way: the place is not known yet."""
    late, _ = await read({AT: answer})

    assert not late.is_read
    assert late.since_s > PATIENCE_S, "from now on"


async def test_a_place_that_retention_deleted_is_read_where_the_log_begins() -> None:
    """Offset 5 is out of range, the log begins at 9 and ends there."""
    late, reads = await read({AT: (OUT_OF_RANGE, -1), 9: (0, 9)}, start=9)

    assert reads.asked == [AT, 9]
    assert late.is_read


async def test_a_leader_that_does_not_say_where_its_log_begins_is_asked_again() -> None:
    """The place stays as it is, and nothing is raised."""
    late, reads = await read({AT: (OUT_OF_RANGE, -1)}, start=None)

    assert reads.asked == [AT]
    assert not late.is_read
