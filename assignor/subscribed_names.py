"""Topic names in the metadata of a member, changed without a touch on what follows them.

Source: ConsumerProtocolSubscription.json of Apache Kafka: each version begins with its number and
the topics, and brokers read no more than these (ClassicGroup.computeSubscribedTopics).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keylane.assignor.protocol import MESSAGE_BYTES_MAX
from keylane.errors import FrameInvalid
from keylane.wire.primitives import INT16, INT32, Buffer, Reader

COUNT_POSITION = INT16.size
NAMES_POSITION = COUNT_POSITION + INT32.size
PhysicalName = Callable[[str], str]
"""The broker's name of what a client calls a topic."""


def read_names(metadata: Buffer) -> tuple[str, ...] | None:
    """Topics that a member subscribes to; None: the bytes are not of the consumer protocol."""
    found = _read(metadata)
    return None if found is None else found[0]


def hidden_names(names: Sequence[str], physical_name: PhysicalName) -> tuple[str, ...]:
    """Topics behind the lane names among `names` that a broker has to see as subscribed, too.

    A name that itself stands for lanes is no topic of the broker.
    """
    behind = [topic for name in names if (topic := physical_name(name)) != name]
    return tuple(dict.fromkeys(name for name in behind if physical_name(name) == name))


def add_hidden_names(metadata: Buffer, physical_name: PhysicalName) -> bytes | None:
    """The metadata with `hidden_names` behind the others; None: nothing is to be added."""
    found = _read(metadata)
    if found is None:
        return None
    names, end = found
    hidden = hidden_names(names, physical_name)
    return _with_tail(metadata, len(names), end, end, hidden) if hidden else None


def take_hidden_names(metadata: Buffer, physical_name: PhysicalName) -> bytes | None:
    """The metadata as its member sent it; None: nothing was added to it."""
    return split_names(metadata, physical_name)[1]


def shown_names(metadata: Buffer, physical_name: PhysicalName) -> frozenset[str]:
    """Topics that the member itself has named; none where the bytes are not of the protocol."""
    return split_names(metadata, physical_name)[0]


def split_names(
    metadata: Buffer, physical_name: PhysicalName
) -> tuple[frozenset[str], bytes | None]:
    """`shown_names` and `take_hidden_names` at once."""
    found = _read(metadata)
    if found is None:
        return frozenset(), None
    names, end = found
    hidden = hidden_names(names, physical_name)
    kept = len(names) - len(hidden)
    if not hidden or kept < 1 or names[kept:] != hidden:
        return frozenset(names), None
    start = end - sum(INT16.size + len(name.encode()) for name in hidden)
    return frozenset(names[:kept]), _with_tail(metadata, kept, start, end, ())


def _read(metadata: Buffer) -> tuple[tuple[str, ...], int] | None:
    """The names, and where they end."""
    if len(metadata) > MESSAGE_BYTES_MAX:
        return None
    try:
        reader = Reader(metadata, flexible=False)
        if reader.int16() < 0:
            return None
        names = tuple(reader.string() for _ in range(reader.count(INT16.size)))
    except FrameInvalid:
        return None
    return names, reader.position


def _with_tail(metadata: Buffer, count: int, start: int, end: int, tail: Sequence[str]) -> bytes:
    """`count` names up to `start`, then `tail`, then what stands behind `end`."""
    view = memoryview(metadata)
    encoded = [name.encode() for name in tail]
    added = [part for name in encoded for part in (INT16.pack(len(name)), name)]
    head = (view[:COUNT_POSITION], INT32.pack(count + len(tail)), view[NAMES_POSITION:start])
    return b"".join((*head, *added, view[end:]))
