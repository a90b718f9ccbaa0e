"""First bytes of TLS connections that no library would send.

In:    a version, names.  Out: a record with a ClientHello; what a server's record says.
Source: RFC 5246 (7.4.1.2), RFC 6066 (3, server names), RFC 8446 (6, alerts).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

ALERT: Final = 21
HANDSHAKE: Final = 22
TLS_1_0: Final = 0x0301
TLS_1_1: Final = 0x0302
TLS_1_2: Final = 0x0303
PROTOCOL_VERSION: Final = 70
"""The alert's number."""
CIPHERS: Final = (0xC02B, 0xC02C, 0xC009, 0xC00A, 0xC013, 0x002F)
"""ECDHE with ECDSA first, which the tests' certificates are for; then what old clients have."""


def client_hello(version: int = TLS_1_2, names: Iterable[tuple[int, bytes]] | None = None) -> bytes:
    """A whole record; `names` are (type, name) of the server name extension, None: it has none."""
    extensions = [
        (10, _sized(struct.pack(">HH", 23, 24))),  # groups: P-256, P-384
        (11, b"\x01\x00"),  # points are not compressed
        (13, _sized(struct.pack(">HHHH", 0x0403, 0x0503, 0x0401, 0x0203))),
    ]
    if names is not None:
        listed = b"".join(bytes((kind,)) + _sized(name) for kind, name in names)
        extensions.insert(0, (0, _sized(listed)))
    parts = b"".join(struct.pack(">H", number) + _sized(data) for number, data in extensions)
    body = struct.pack(">H", version) + bytes(range(32)) + b"\0"
    body += _sized(struct.pack(f">{len(CIPHERS)}H", *CIPHERS)) + b"\x01\x00" + _sized(parts)
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return struct.pack(">BHH", HANDSHAKE, TLS_1_0, len(message)) + message


def _sized(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def read_record(data: bytes) -> tuple[int, int]:
    """The first record's kind, and for an alert its number, else the first byte of its message."""
    kind, _, size = struct.unpack_from(">BHH", data)
    body = data[5 : 5 + size]
    return kind, body[1] if kind == ALERT else body[0]
