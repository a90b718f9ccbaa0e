"""Response frames as brokers write them."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from keylane.wire.header import response_body_position
from keylane.wire.primitives import Buffer


def write_response(
    api_key: int, api_version: int, correlation_id: int, body: Sequence[Buffer]
) -> list[Buffer]:
    """A whole response frame: size and header, then `body`."""
    header_bytes = response_body_position(api_key, api_version)
    head = struct.pack(">ii", header_bytes + sum(map(len, body)), correlation_id)
    return [head + b"\x00" if header_bytes == 5 else head, *body]
