"""Hostile inputs of decoders, each a function of a seed and its number.

In:    a seed, a number.  Out: bytes in the form of the corpus: decoder, choice, data.

An input is a sound one with one to six changes: bits, bytes that parsers trip over, lengths, pieces
cut out, doubled or taken from another sound input. One in eight is bytes of chance.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from tests.fuzz.targets import TARGETS, fuzz_split

BYTES: Final = (0, 1, 2, 127, 128, 254, 255)
INTS: Final = (0, 1, -1, 2, 127, 128, 255, 256, 32_767, 65_535, 2**31 - 1, -(2**31))
TEXTS: Final = (
    b'"', b"[", b"{", b"]", b"}", b"Infinity", b"NaN", b"-1", b"1e999", b"9" * 400, b"null",
    b"[" * 3000, b"\\ud800", b"\xff\xfe", b"\0", b"\r\n", b"%s", b"..", b"\xf0\x9f\x92\xa9",
)  # fmt: skip
DATA_BYTES_MAX: Final = 8192
SPLIT_SHARE: Final = 0.25
"""Share of its turns that the decoder of batches takes: it costs ten times the others."""

Mutation = Callable[[bytearray, random.Random], None]


@cache
def seed_inputs() -> tuple[tuple[bytes, ...], ...]:
    """Sound inputs by decoder."""
    from tests.fuzz.seeds import make_seeds

    found: list[list[bytes]] = [[] for _ in TARGETS]
    for data in make_seeds():
        found[data[0]].append(data)
    return tuple(map(tuple, found))


def make_input(seed: int, number: int) -> bytes:
    """The input of this number. Equal arguments give equal bytes, in any process."""
    rng = random.Random(seed << 40 ^ number)
    target = number % len(TARGETS)
    if TARGETS[target] is fuzz_split and rng.random() > SPLIT_SHARE:
        target = rng.randrange(len(TARGETS))
    known = seed_inputs()[target]
    if not known or rng.random() < 1 / 8:
        return bytes((target, rng.randrange(256))) + rng.randbytes(rng.randrange(200))
    chosen = rng.choice(known)
    data = bytearray(chosen[2:])
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(MUTATIONS)(data, rng)
    # A choice stays what it was where it says how the bytes are wrapped.
    choice = chosen[1] if rng.random() < 0.9 else rng.randrange(256)
    return bytes((target, choice)) + bytes(data[:DATA_BYTES_MAX])


def _place(data: Sequence[int], rng: random.Random) -> int:
    return rng.randrange(len(data) + 1)


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice(BYTES)


def _set_int(data: bytearray, rng: random.Random) -> None:
    form, size = rng.choice(((">i", 4), (">q", 8)))
    place = _place(data, rng)
    data[place : place + size] = struct.pack(form, rng.choice(INTS))


def _set_short(data: bytearray, rng: random.Random) -> None:
    place = _place(data, rng)
    data[place : place + 2] = struct.pack(">H", rng.choice(INTS) & 0xFFFF)


def _put_varint(data: bytearray, rng: random.Random) -> None:
    place = _place(data, rng)
    data[place:place] = b"\xff" * rng.randrange(1, 11) + bytes((rng.choice(BYTES),))


def _put_text(data: bytearray, rng: random.Random) -> None:
    place = _place(data, rng)
    data[place : place + rng.randrange(3)] = rng.choice(TEXTS)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[_place(data, rng) :]


def _drop(data: bytearray, rng: random.Random) -> None:
    place = _place(data, rng)
    del data[place : place + rng.randrange(1, 9)]


def _double(data: bytearray, rng: random.Random) -> None:
    place = _place(data, rng)
    data[place:place] = data[place : place + rng.randrange(1, 200)]


def _take(data: bytearray, rng: random.Random) -> None:
    """A piece of another sound input, whatever decoder that is of."""
    other = rng.choice(rng.choice([known for known in seed_inputs() if known]))
    start = rng.randrange(len(other))
    place = _place(data, rng)
    data[place:place] = other[start : start + rng.randrange(1, 100)]


MUTATIONS: Final[tuple[Mutation, ...]] = (
    _flip, _flip, _set, _set, _set_int, _set_short, _put_varint, _put_text, _cut, _drop, _double,
    _take,
)  # fmt: skip


def minimise(data: bytes, fails: Callable[[bytes], bool], *, tries: int = 2000) -> bytes:
    """A shorter input that still fails: pieces are left out as long as that holds."""
    step = max(1, (len(data) - 2) // 2)
    while step and tries:
        position = 2
        while position < len(data) and tries:
            tries -= 1
            shorter = data[:position] + data[position + step :]
            if fails(shorter):
                data = shorter
            else:
                position += step
        step //= 2
    return data
