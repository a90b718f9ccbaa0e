"""One request of a client: its header, its body, and the frame of its answer.

Source: Kafka protocol guide, request and response headers v0 to v2.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field
from typing import Any, Final

from kio.index import load_payload_module, load_response_schema
from kio.static.constants import EntityType

from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.wire.header import (
    ApiKey,
    RequestHeader,
    find_response_body,
    is_flexible,
    response_body_position,
)
from keylane.wire.messages import read_request, read_response, write_message
from keylane.wire.offset_commit import read_commit_request

SIZE: Final = struct.Struct(">i")
RESPONSE_HEADER: Final = struct.Struct(">ii")
TAGS_AT: Final = SIZE.size + 4
"""Position of the tagged fields of an answer's header: behind the correlation id."""
TAGGED_BODY: Final = TAGS_AT + 1
"""Position of the body without tagged fields."""
NO_TAGS: Final = b"\x00"


class Operation(enum.IntEnum):
    """Operations on a topic; the values are Kafka's own (`AclOperation`)."""

    READ = 3
    WRITE = 4
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8


@dataclass(slots=True)
class Request:
    """One request in its bytes, size included."""

    header: RequestHeader
    frame: Frame
    answer_tags: bytes = field(default=NO_TAGS, init=False, repr=False, compare=False)
    """The tagged fields of the answer's header, raw, from the broker."""
    _entity: Any = field(default=None, init=False, repr=False, compare=False)
    """The body as a kio entity, kept after it was asked for."""

    @property
    def api_key(self) -> int:
        """Return the Kafka API key."""
        return int(self.header.api_key)

    @property
    def api_version(self) -> int:
        """Return the version of the request's and the answer's body."""
        return self.header.api_version

    @property
    def is_flexible(self) -> bool:
        """Return whether the body has compact lengths and tagged fields."""
        return is_flexible(self.header.api_key, self.header.api_version)

    @property
    def answer_type(self) -> Any:
        """Return kio's type of the answer."""
        return load_response_schema(self.api_key, self.api_version)

    @property
    def answer_module(self) -> Any:
        """Return kio's module of the answer, with the types of its entries."""
        return load_payload_module(self.api_key, self.api_version, EntityType.response)

    @property
    def body(self) -> memoryview:
        """Return the bytes behind the request header."""
        return memoryview(self.frame)[SIZE.size + self.header.body_position :]

    def decode(self) -> Any:
        """Return the body as a kio entity; for a commit that of `wire.offset_commit`, same names.

        Raises: FrameInvalid.
        """
        if self._entity is None:
            if self.api_key == ApiKey.OFFSET_COMMIT:
                self._entity = read_commit_request(self.body, self.api_version)
            else:
                self._entity = read_request(self.api_key, self.api_version, self.body)
        return self._entity

    def with_body(self, body: bytes) -> bytes:
        """Return a frame with the same header and another body."""
        header = memoryview(self.frame)[SIZE.size : SIZE.size + self.header.body_position]
        return b"".join((SIZE.pack(len(header) + len(body)), header, body))

    def with_buffers(self, body: Buffers) -> Buffers:
        """Return the frame of `with_body`, without copying the pieces."""
        header = memoryview(self.frame)[SIZE.size : SIZE.size + self.header.body_position]
        size_bytes = len(header) + sum(map(len, body))
        return (SIZE.pack(size_bytes) + header.tobytes(), *body)

    def with_entity(self, entity: Any) -> bytes:
        """Return the frame of `with_body`, from a kio entity."""
        return self.with_body(write_message(entity))

    @property
    def body_position(self) -> int:
        """Return the position of the body in the frame."""
        return SIZE.size + self.header.body_position

    def answer_position(self, frame: Frame) -> int:
        """Return the position of the body in a broker's answer to this request.

        Notes tagged fields in the answer's header, which go to the client unchanged.
        """
        start = find_response_body(frame, SIZE.size, self.api_key, self.api_version)
        if start > TAGGED_BODY:
            self.answer_tags = bytes(frame[TAGS_AT:start])
        return start

    def answer_body(self, frame: Frame) -> memoryview:
        """Return the body of a broker's answer to this request."""
        return memoryview(frame)[self.answer_position(frame) :]

    def decode_answer(self, frame: Frame) -> Any:
        """Return the answer as a kio entity. Raises: FrameInvalid."""
        return read_response(self.api_key, self.api_version, self.answer_body(frame))

    def with_answer_body(self, frame: Frame, body: bytes) -> Buffers:
        """Return a broker's answer to this request with the same header and another body."""
        head = bytes(memoryview(frame)[SIZE.size : self.answer_position(frame)])
        return (SIZE.pack(len(head) + len(body)), head, body)

    def answer(self, buffers: Buffers, *, header_version: int | None = None) -> Buffers:
        """Put size and response header before a body."""
        tags = b""
        if response_body_position(self.api_key, self.api_version) > 4 and header_version != 0:
            tags = self.answer_tags
        size_bytes = 4 + len(tags) + sum(map(len, buffers))
        return (RESPONSE_HEADER.pack(size_bytes, self.header.correlation_id) + tags, *buffers)

    def answer_entity(self, entity: Any) -> Buffers:
        """Put size and response header before a body from a kio entity."""
        return self.answer((write_message(entity),))
