"""Topics that a client names and that cannot be resolved at this moment: refused, never relayed.

A broker refuses most of what names a topic or partition that it does not know. An OffsetFetch it
answers: "no offset", without an error, and the client starts where its own reset policy says. So
an index of a lane must never reach it. Where a name means lanes by the rules, or an id is of no
known topic, and the broker does not show the topic now, keylane answers in the broker's place.

Source: Kafka 4.3, `OffsetMetadataManager.fetchOffsets`, which looks at offsets only.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import ConfigInvalid, TopicNotReady
from keylane.keyrange.key_split import KeySplit
from keylane.keyrange.space import KeyRange
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.lane_topics import find_shared
from keylane.proxy.topics.registry import View
from keylane.wire.batch import CODEC_NONE

ZERO_ID: Final = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresolvedView:
    """Implements `topics.View`: every index is refused with one code."""

    name: str
    topic: str
    topic_id: uuid.UUID
    error_code: int
    """Kafka's: what the broker said of the topic, or TOPIC_AUTHORIZATION_FAILED."""

    @property
    def view_id(self) -> uuid.UUID:
        """The id that the client has named."""
        return self.topic_id

    @property
    def reserve(self) -> bool:
        """Nothing is read."""
        return False

    @property
    def codec(self) -> int:
        """Nothing is sent."""
        return CODEC_NONE

    @property
    def is_renamed(self) -> bool:
        """Nothing is known of its names."""
        return False

    @property
    def layout(self) -> None:
        """There are no lanes that could be served."""
        return

    @property
    def indexes(self) -> range:
        """None."""
        return range(0)

    def error_of(self, _index: int) -> int:
        """The one code."""
        return self.error_code

    def partition_of(self, index: int) -> int:
        """Not to be asked: each index is refused."""
        raise AssertionError(f"index {index} of {self.name} is refused")

    def output_of(self, index: int) -> int:
        """Not to be asked: each index is refused."""
        raise AssertionError(f"index {index} of {self.name} is refused")

    def key_ranges(self, index: int) -> tuple[KeyRange, ...]:
        """Not to be asked: each index is refused."""
        raise AssertionError(f"index {index} of {self.name} is refused")

    def key_split(self, partition: int) -> KeySplit:
        """Not to be asked: each index is refused."""
        raise AssertionError(f"partition {partition} of {self.name} is refused")


async def resolve_view(
    client_id: str | None, name: str | None, topic_id: uuid.UUID | None, context: Context
) -> View | None:
    """The client's meaning of a topic, by its name or its id; None: it is plain for certain.

    Raises: UpstreamLost, when the connection to the broker is lost.
    """
    try:
        view = await find_shared(client_id, name, topic_id, context)
    except ConfigInvalid:
        # A plan that does not fit, or nodes that do not agree; `cluster` and `topics` log it.
        return _unresolved(name, topic_id, ErrorCode.topic_authorization_failed, context)
    except TopicNotReady as error:
        return _unresolved(name, topic_id, error.topic_error_code, context)
    if view is not None or _is_plain(client_id, name, topic_id, context):
        return view
    return _unresolved(name, topic_id, context.refusal_of(topic_id or name or ""), context)


def unresolved_lanes(name: str | None, context: Context) -> UnresolvedView | None:
    """Of a name without a view: what refuses it when it means lanes; None: it does not."""
    if name is None or context.registry.rule_of(name) is None:
        return None
    return _unresolved(name, None, context.refusal_of(name), context)


def _is_plain(
    client_id: str | None, name: str | None, topic_id: uuid.UUID | None, context: Context
) -> bool:
    """Return whether a topic without a view is its partitions, whatever the broker knows of it."""
    registry = context.registry
    if topic_id is not None:
        return registry.is_plain_id(topic_id)
    if registry.rule_of(name or "") is not None:
        return False
    # A client with key ranges may have some of this topic: that is known with its id only.
    return not context.range_views.has_ranges(client_id) or (name or "") in registry.topics


def _unresolved(
    name: str | None, topic_id: uuid.UUID | None, error_code: int, context: Context
) -> UnresolvedView:
    known = name if name is not None else str(topic_id)
    return UnresolvedView(
        name=known,
        topic=context.registry.physical_name(known),
        topic_id=topic_id or ZERO_ID,
        error_code=error_code,
    )
