"""Requests and answers with many entries: read and written beside the event loop, one at a time.

Behaviour: a client chooses lane names, and each of them shows all partitions of a topic once per
lane. So an answer has room for a number of entries under such names, and further names are refused.
Names of an operator's rules have no such bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import FrameInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.view import View
from keylane.wire.repeated import Repeated

ENTRIES_AT_ONCE: Final = 2_000
"""Entries that are made in some 10 ms, for which the loop can be held."""
BYTES_AT_ONCE: Final = 64 * 1024
"""Bytes that are read in the same time."""
ENTRIES_MAX: Final = 50_000
"""Partitions, or groups, that one request names."""
LANE_NAME_ENTRIES_MAX: Final = 100_000
"""Entries of one answer under lane names: partitions times lanes, of all names together."""

Shown = tuple[Any, View | None]
"""A kio topic entry, and the lanes to show in the place of its partitions."""


def check_entries(count: int) -> None:
    """Check the count of a request whose entries are read one by one. Raises: FrameInvalid."""
    if count > ENTRIES_MAX:
        raise FrameInvalid(f"request has {count} partitions or groups, at most {ENTRIES_MAX}")


class AnswerRoom:
    """Room for lane names in one answer."""

    def __init__(self) -> None:
        self.entries_left = LANE_NAME_ENTRIES_MAX

    def takes(self, name: str, topic: Any, context: Context) -> bool:
        """Return whether there is room for a name that means lanes of a kio topic entry."""
        found = context.registry.rule_of(name)
        if found is None or found[0] == name:
            return True
        entries = found[1] * len(topic.partitions)
        if entries > self.entries_left:
            return False
        self.entries_left -= entries
        return True


def too_many(topic: Any, name: str) -> Any:
    """Return a kio topic entry for a lane name without room. Clients do not ask again."""
    code = ErrorCode.invalid_topic_exception
    return replace(topic, name=type(topic.name)(name), partitions=(), error_code=code)


async def expand_all(shown: Sequence[Shown], context: Context) -> tuple[Any, ...]:
    """Return the kio topic entries, with lanes where there are any."""
    count = sum(0 if view is None else view.layout.index_count for _, view in shown)
    if count <= ENTRIES_AT_ONCE:
        return _expand(shown)
    return await context.in_turn(_expand, shown)


def _expand(shown: Sequence[Shown]) -> tuple[Any, ...]:
    return tuple(topic if view is None else expand_topic(topic, view) for topic, view in shown)


def expand_topic(topic: Any, view: View) -> Any:
    """Return a kio topic entry with one partition per lane, in lane index order."""
    count = view.layout.partition_count
    partitions = [entry for entry in topic.partitions if entry.partition_index < count]
    expanded = Repeated(partitions, copies=view.layout.lane_count, step=count)
    changes: dict[str, Any] = {"name": type(topic.name)(view.name), "partitions": expanded}
    if hasattr(topic, "topic_id"):
        changes["topic_id"] = view.view_id
    return replace(topic, **changes)


async def read_answer(request: Request, frame: Frame, context: Context) -> Any:
    """Decode as `Request.decode_answer`, a large one beside the loop. Raises: FrameInvalid."""
    if len(frame) <= BYTES_AT_ONCE:
        return request.decode_answer(frame)
    return await context.in_turn(request.decode_answer, frame)


async def write_answer(request: Request, entity: Any, entries: int, context: Context) -> Buffers:
    """Answer as `Request.answer_entity`, with many entries beside the loop."""
    if entries <= ENTRIES_AT_ONCE:
        return request.answer_entity(entity)
    return await context.in_turn(request.answer_entity, entity)


def check_partitions(topics: Iterable[Any], field: str = "partitions") -> None:
    """Check the counts of a request's kio topic entries. Raises: FrameInvalid."""
    check_entries(sum(len(getattr(topic, field)) for topic in topics))


def count_partitions(topics: Sequence[Any]) -> int:
    """Return the number of partitions of kio topic entries."""
    return sum(len(topic.partitions) for topic in topics)
