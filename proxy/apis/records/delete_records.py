"""DeleteRecords v0-2: a log is cut where the last of its lanes allows.

Behaviour: to delete the records of a lane before an offset is to cut the log of its partition, and
with it the records of the other lanes. So lanes are refused with POLICY_VIOLATION, and the reason
is logged, unless one request names all lanes of a partition. Then the log is cut at the lowest of
their offsets, and each lane is answered the new log start. An offset of -1 is the high watermark,
above all others. Topics without lanes pass unchanged.
Not done: nothing.

Source: KIP-107; docs/decisions/028.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_wishes import REFUSED, find_wishes, lanes_text, wished_topics
from keylane.proxy.apis.shared.refusals import RefusalReason
from keylane.proxy.apis.shared.relay import ask, relay
from keylane.proxy.apis.shared.request import Operation, Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View

HIGH_WATERMARK: Final = -1


async def handle_delete_records(request: Request, context: Context) -> Buffers:
    """Cut partitions whose lanes are all named; refuse the rest of the lanes."""
    wanted = request.decode()
    offsets = [
        (topic, [(int(e.partition_index), int(e.offset)) for e in topic.partitions])
        for topic in wanted.topics
    ]
    wishes = await find_wishes(offsets, lowest_offset, context)
    if wishes is None:
        return await relay(request, context)
    asked = wished_topics(wanted.topics, wishes.settle())
    await wishes.judge(Operation.DELETE, context)
    wishes.log_refusals("DeleteRecords", context)
    answer = None
    if asked:
        answer = await ask(request, replace(wanted, topics=asked), context)
    return request.answer_entity(wishes.answer(request, answer))


def lowest_offset(view: View, partition: int, offsets: Mapping[int, int]) -> int | RefusalReason:
    """Return the lowest of the offsets up to which all lanes of a partition may be cut."""
    count = view.layout.lane_count
    if len(offsets) < count:
        first, step = partition, view.layout.partition_count
        return RefusalReason(
            REFUSED,
            f"{lanes_text(view)}, which share one log: name all {count} lanes of partition "
            f"{partition} ({first}, {first + step}, ...), or ask a broker's own address",
        )
    return min((each for each in offsets.values() if each != HIGH_WATERMARK),
               default=HIGH_WATERMARK)  # fmt: skip
