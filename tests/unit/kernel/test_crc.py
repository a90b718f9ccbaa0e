"""CRC32C: three ways, one number."""

from __future__ import annotations

import random

import google_crc32c
import pytest

from keylane.kernel.crc import STREAM_BYTES, crc32c_by_tables, crc32c_of
from keylane.kernel.memory import address_of, as_bytes_array

SIZES = sorted(
    {*range(1, 20), 61, 255, *(3 * size + more for size in STREAM_BYTES for more in (-1, 0, 1, 9))}
    | {3 * sum(STREAM_BYTES) + 13, 9_999}
)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_gives_the_reference_crc(size: int) -> None:
    """Around the steps of the streams and off any alignment, with instruction and tables."""
    data = random.Random(size).randbytes(size + 3)
    array = as_bytes_array(data)
    expected = google_crc32c.value(data[3:])

    assert crc32c_of(address_of(array) + 3, size) == expected
    assert crc32c_by_tables(address_of(array) + 3, size) == expected


def test_the_check_value_of_the_standard() -> None:
    """RFC 3720: nine digits give E3069283; nothing gives 0."""
    array = as_bytes_array(b"123456789")

    assert crc32c_of(address_of(array), 9) == 0xE3069283
    assert crc32c_of(address_of(array), 0) == 0
