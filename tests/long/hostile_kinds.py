"""Kinds of hostile clients: each kind is one connection, made of chance.

In:    a generator of chance, where to.  Out: how many inputs it was.
"""

from __future__ import annotations

import base64
import random
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from keylane.proxy.apis import ROUTES
from keylane.wire.header import write_request
from tests.fuzz.entities import random_request_body
from tests.fuzz.mutate import MUTATIONS
from tests.integration.test_hostile_listener import HOSTILE
from tests.long.hostile_stage import PASSWORDS
from tests.long.hostile_talk import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Aim,
    Talk,
    TlsTalk,
    handshake_body,
    token_body,
)

SECRET: Final = "Xq9-secret-of-a-client"
FORGED: Final = "2026-01-01 00:00:00,000 INFO keylane.server FORGED"
"""A line that a client would like to see in the log."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI", "", "x" * 2000, FORGED)
REQUESTS_MAX: Final = 5
DATA_BYTES_MAX: Final = 64 * 1024
SHARE_APIS: Final = (76, 78, 79)
FETCH: Final = 1
SASL: Final = (SASL_HANDSHAKE, SASL_AUTHENTICATE)
SLOW: Final = frozenset({11, 14})
"""JoinGroup and SyncGroup wait for other members; the connection is closed before."""


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One to three changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(MUTATIONS)(changed, rng)
    return bytes(changed[:DATA_BYTES_MAX])


async def raw_bytes(rng: random.Random, aim: Aim) -> int:
    """Bytes of chance, frames of chance, known traps; then a clean end or RST."""
    kind = rng.randrange(5)
    if kind == 0:
        data = rng.randbytes(rng.randrange(1, 300))
    elif kind == 1:
        body = rng.randbytes(rng.randrange(8, 200))
        data = struct.pack(">i", len(body)) + body
    elif kind == 2:
        data = rng.choice(list(HOSTILE.values()))
    elif kind == 3:
        data = struct.pack(">i", rng.choice((-1, 0, 3, 1 << 19, 1 << 27, 2**31 - 1)))
        data += rng.randbytes(rng.randrange(2000))
    else:
        data = mutated(write_request(rng.choice(list(ROUTES)), 0, 1, FORGED, bytes(30)), rng)
    async with Talk(aim.plain) as talk:
        await talk.send(data)
        if rng.random() < 0.3:
            talk.reset()
        elif rng.random() < 0.5:
            await talk.read(seconds=0.1)
    return 1


async def logins(rng: random.Random, aim: Aim) -> int:
    """Parts of logins in any order, some of them pipelined, some in the middle of a session."""
    async with Talk(aim.plain) as talk:
        if rng.random() < 0.2:
            await talk.log_in("mallory", PASSWORDS["mallory"])
        parts = [login_part(rng) for _ in range(rng.randrange(1, REQUESTS_MAX + 1))]
        if rng.random() < 0.5:
            await talk.send(b"".join(parts))
            await talk.read()
        else:
            for part in parts:
                if not await talk.send(part) or not await talk.read():
                    break
    return len(parts)


def login_part(rng: random.Random) -> bytes:
    """A handshake, a token, or a request that has no place in a login."""
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(
            write_request(SASL_HANDSHAKE, 1, 1, "raw", handshake_body(rng.choice(MECHANISMS)))
        )
    if kind == 1:
        return bytes(write_request(SASL_AUTHENTICATE, 1, 1, "raw", token_body(token(rng))))
    if kind == 2:
        size = rng.choice((-2, 2**31 - 1, 1 << 20, 100))
        body = struct.pack(">i", size) + SECRET.encode()
        return bytes(write_request(SASL_AUTHENTICATE, 0, 1, "raw", body))
    if kind == 3:
        key = rng.choice(SASL)
        return bytes(write_request(key, 1, 1, "raw", mutated(token_body(token(rng)), rng)))
    if kind == 4:
        return bytes(write_request(18, 0, 1, "raw", b""))
    return one_request(rng, rng.choice(list(ROUTES)), damage=False)


def token(rng: random.Random) -> bytes:
    """A token of some mechanism, good in form or not; its secret may be seen nowhere."""
    claims = base64.urlsafe_b64encode(b'{"sub":"' + SECRET.encode() + b'"}').rstrip(b"=")
    known = (
        f"\0mallory\0{SECRET}".encode(),
        f"\0mallory\0{PASSWORDS['mallory']}".encode(),
        b"n,,n=mallory,r=" + SECRET.encode(),
        b"c=biws,r=" + SECRET.encode() + b",p=AAAA",
        b"n,,\x01auth=Bearer aaaa." + claims + b".\x01\x01",
        f"\0{FORGED}\n{FORGED}\0{SECRET}".encode(),
        rng.randbytes(rng.randrange(400)),
        b"",
    )
    data = rng.choice(known)
    return mutated(data, rng) if rng.random() < 0.3 else data


def one_request(rng: random.Random, key: int, *, damage: bool) -> bytes:
    """A request of any version with fields of chance; its body is damaged if asked for."""
    route = ROUTES[key]
    version = rng.randint(route.version_min, route.version_max)
    body = random_request_body(key, version, rng.getrandbits(32))
    if damage:
        body = mutated(body, rng)
    return bytes(write_request(key, version, rng.getrandbits(31), "fuzz", body))


async def requests(rng: random.Random, aim: Aim) -> int:
    """After a login: sound requests of any API, then one that is damaged."""
    keys = [key for key in ROUTES if key not in SASL]
    return await send_requests(rng, aim, [rng.choice(keys) for _ in range(rng.randrange(1, 6))])


async def share_groups(rng: random.Random, aim: Aim) -> int:
    """Send calls of share groups after a login, the last of them damaged."""
    return await send_requests(rng, aim, [rng.choice(SHARE_APIS) for _ in range(3)])


async def send_requests(rng: random.Random, aim: Aim, keys: list[int]) -> int:
    """A login, then these calls, the last of them damaged."""
    async with Talk(aim.plain) as talk:
        await talk.log_in("mallory", PASSWORDS["mallory"])
        frames = [one_request(rng, key, damage=key is keys[-1]) for key in keys]
        await talk.send(b"".join(frames))
        if rng.random() < 0.7 and not SLOW.intersection(keys):
            await talk.read(seconds=0.2)
    return len(keys)


async def fetch_sessions(rng: random.Random, aim: Aim) -> int:
    """Fetches with ids and epochs of sessions that are others', or never were (KIP-227)."""
    count = rng.randrange(1, 5)
    async with Talk(aim.plain) as talk:
        await talk.log_in("mallory", PASSWORDS["mallory"])
        for number in range(count):
            await talk.send(write_request(FETCH, 11, number, "fuzz", fetch_body(rng)))
        await talk.read(seconds=0.2)
    return count


def fetch_body(rng: random.Random) -> bytes:
    """Fetch v11 of one partition or lane, with forgotten ones."""
    session_id = rng.choice((0, 1, 77, 2**31 - 1, -1, rng.getrandbits(31)))
    epoch = rng.choice((-1, 0, 1, 2, 2**31 - 1, -(2**31)))
    topic = rng.choice((b"orders", b"orders.lanes-4", b"plain", b"junk", b"none"))
    name = struct.pack(">h", len(topic)) + topic
    entry = struct.pack(">iiqqi", rng.randrange(-1, 20), -1, 0, -1, 1 << 20)
    topics = struct.pack(">i", 1) + name + struct.pack(">i", 1) + entry
    forgotten = struct.pack(">i", 1) + name + struct.pack(">iii", 2, 0, rng.randrange(-5, 20))
    head = struct.pack(">iiiibii", -1, 10, 1, 1 << 20, rng.randrange(2), session_id, epoch)
    return head + topics + forgotten + struct.pack(">h", 0)


async def tls(rng: random.Random, aim: Aim) -> int:
    """A handshake that is broken off, damaged or followed by garbage, at any stage."""
    if rng.random() < 0.2:
        async with Talk(aim.tls) as talk:  # no TLS at all
            await talk.send(rng.choice((rng.randbytes(rng.randrange(1, 600)), *HOSTILE.values())))
            await talk.read(seconds=0.1)
        return 1
    version = rng.choice((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))
    name = rng.choice((None, "localhost", "x" * 60 + ".test", "127.0.0.1"))
    async with Talk(aim.tls) as talk:
        hands = TlsTalk(talk, version=version, name=name)
        with suppress(ssl.SSLError):  # what a damaged flight was answered with
            await shake_hands(rng, hands, damaged_flight=rng.randrange(4))
        if rng.random() < 0.3:
            talk.reset()
    return 1


async def shake_hands(rng: random.Random, hands: TlsTalk, *, damaged_flight: int) -> None:
    """Flights up to one that is damaged or cut; then garbage, in records and without."""
    for number in range(4):
        data = hands.flight()
        if number == damaged_flight and data:
            data = data[: rng.randrange(len(data))] if rng.random() < 0.5 else mutated(data, rng)
        if data and not await hands.talk.send(data):
            return
        if number == damaged_flight and rng.random() < 0.7:
            await hands.talk.read(seconds=0.1)
            return
        if hands.is_done:
            break
        if not await hands.take():
            return
    if not hands.is_done:
        return
    garbage = rng.choice(
        (
            rng.randbytes(200),
            hands.wrap(rng.choice(list(HOSTILE.values()))),
            mutated(hands.wrap(one_request(rng, 18, damage=False)), rng),
            struct.pack(">BHH", 23, 0x0303, 0xFFFF) + bytes(100),
        )
    )
    await hands.talk.send(garbage)
    await hands.talk.read(seconds=0.1)


async def http(rng: random.Random, aim: Aim) -> int:
    """Requests at the control port, damaged in line, headers, lengths or body."""
    path = rng.choice(
        ("/livez", "/metrics", "/groups/x", "/assignments", "/assignments/c", "/", "/page/events",
         "/page/..%2f..", "/" + "a" * 5000, "/groups/%00%0d%0a" + SECRET)
    )  # fmt: skip
    method = rng.choice(("GET", "PUT", "PATCH", "DELETE", "POST", "OPTIONS", "XYZZY"))
    body = rng.choice((b"", b"{}", b"[" * 3000, b'{"ranges":' * 50, rng.randbytes(100)))
    length = rng.choice((len(body), 0, 10**9, -1))
    lines = [
        f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json",
        f"Content-Length: {length}", f"Authorization: Bearer {SECRET}",
    ]  # fmt: skip
    data = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    async with Talk(aim.control) as talk:
        await talk.send(mutated(data, rng) if rng.random() < 0.8 else data)
        await talk.read(seconds=0.1)
    return 1


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of hostile client, and its share of connections."""

    play: Callable[[random.Random, Aim], Awaitable[int]]
    weight: int

    @property
    def name(self) -> str:
        """Return the name for the table."""
        return self.play.__name__.replace("_", " ")


KINDS: Final = (
    Kind(raw_bytes, 30), Kind(logins, 20), Kind(requests, 22), Kind(tls, 16),
    Kind(fetch_sessions, 5), Kind(share_groups, 5), Kind(http, 2),
)  # fmt: skip
"""Shares by what a connection costs: one with a login takes a connection to a broker too."""


def choose(rng: random.Random) -> Kind:
    """Draw a kind by weight."""
    return rng.choices(KINDS, [kind.weight for kind in KINDS])[0]
