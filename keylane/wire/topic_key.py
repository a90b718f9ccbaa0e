"""Key of a topic in Fetch and Produce: its name up to v12, its id from v13 on.

Source: KIP-516.
"""

from __future__ import annotations

from typing import Final, Protocol

from keylane.wire.primitives import UUID_BYTES, Reader, Writer

TOPIC_ID_FROM: Final = 13


class NamedTopic(Protocol):
    """A topic of a request or an answer."""

    @property
    def name(self) -> str | None:
        """Its name, up to v12."""

    @property
    def topic_id(self) -> bytes | None:
        """Its id, from v13 on."""


def read_topic_key(reader: Reader, version: int) -> tuple[str | None, bytes | None]:
    """Read (name, id). Raises: FrameInvalid."""
    if version >= TOPIC_ID_FROM:
        return None, reader.uuid()
    return reader.string(), None


def write_topic_key(writer: Writer, topic: NamedTopic, version: int) -> None:
    """Write what this version names the topic by."""
    if version >= TOPIC_ID_FROM:
        assert topic.topic_id is not None, "topics are named by id from v13 on"
        assert len(topic.topic_id) == UUID_BYTES, "a topic id has 16 bytes"
        writer.raw(topic.topic_id)
    else:
        assert topic.name is not None, "topics are named by name up to v12"
        writer.string(topic.name)
