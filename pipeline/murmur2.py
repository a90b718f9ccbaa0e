"""Kafka's murmur2 of a whole column of keys: four bytes of all keys at a time.

Source: `org.apache.kafka.common.utils.Utils.murmur2` (Apache Kafka 4.3); `keylane.keyrange.hash`
has it for one key. Of Spark's own functions the loop over a key's bytes would take five times as
long (docs/decisions/044).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keylane.keyrange.hash import (
    MURMUR2_MULTIPLIER,
    MURMUR2_SEED,
    MURMUR2_SHIFT,
    POSITIVE_MASK,
)

_M: Final = np.uint32(MURMUR2_MULTIPLIER)
_SHIFT: Final = np.uint32(MURMUR2_SHIFT)
PADDING: Final = np.zeros(4, np.uint8)
"""Behind the last key, where a word may begin that no key has."""


def hash_keys(keys: pa.Array) -> pa.Array:
    """Return `positive_murmur2` of each key, as int64; null of null."""
    starts, data = _places(keys)
    sizes = np.diff(starts)
    values = sizes.astype(np.uint32) ^ np.uint32(MURMUR2_SEED)
    words = sizes >> 2
    for number in range(int(words.max(initial=0))):
        (rows,) = np.nonzero(words > number)
        mixed = _word(data, starts[rows] + 4 * number) * _M
        mixed = (mixed ^ (mixed >> _SHIFT)) * _M
        values[rows] = (values[rows] * _M) ^ mixed
    (rows,) = np.nonzero(sizes & 3)
    rest = (sizes[rows] & 3).astype(np.uint32)
    tail = _word(data, starts[rows] + 4 * words[rows])
    tail &= (np.uint32(1) << (np.uint32(8) * rest)) - np.uint32(1)
    values[rows] = (values[rows] ^ tail) * _M
    values = (values ^ (values >> np.uint32(13))) * _M
    values ^= values >> np.uint32(15)
    positive = (values & np.uint32(POSITIVE_MASK)).astype(np.int64)
    return pa.array(positive, mask=keys.is_null().to_numpy(zero_copy_only=False))


def _places(keys: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where keys begin, the end of the last one behind them, and their bytes."""
    keys = keys.cast(pa.large_binary())
    _, offsets, bytes_of_all = keys.buffers()
    if len(keys) == 0:
        return np.zeros(1, np.int64), PADDING
    starts = np.frombuffer(offsets, np.int64, len(keys) + 1, 8 * keys.offset)
    data = PADDING[:0] if bytes_of_all is None else np.frombuffer(bytes_of_all, np.uint8)
    return starts, np.concatenate([data, PADDING])


def _word(data: NDArray[np.uint8], at: NDArray[np.int64]) -> Any:
    """Return the little-endian words at these places."""
    word = np.zeros(len(at), np.uint32)
    for byte in range(4):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word
