"""CRC32C: three ways, one number."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import google_crc32c
import pytest

from keylane.kernel.crc import STREAM_BYTES, crc32c_at, crc32c_by_tables
from keylane.kernel.crc_instruction import BLOCK_BYTES, fold_pair, power_mod
from keylane.kernel.library import address_of, as_bytes_array

SIZES = sorted(
    {*range(1, 20), 61, 255, *(3 * size + more for size in STREAM_BYTES for more in (-1, 0, 1, 9))}
    | {3 * sum(STREAM_BYTES) + 13, 9_999}
    | {count * BLOCK_BYTES + more for count in (1, 2, 5) for more in (-1, 0, 1, 15)}
)


@pytest.mark.parametrize("size", SIZES)
def test_every_size_gives_the_reference_crc(size: int) -> None:
    """Around the steps of the streams and off any alignment, with instruction and tables."""
    data = random.Random(size).randbytes(size + 3)
    array = as_bytes_array(data)
    expected = google_crc32c.value(data[3:])

    assert crc32c_at(address_of(array) + 3, size) == expected
    assert crc32c_by_tables(address_of(array) + 3, size) == expected


def test_the_check_value_of_the_standard() -> None:
    """RFC 3720: nine digits give E3069283; nothing gives 0."""
    array = as_bytes_array(b"123456789")

    assert crc32c_at(address_of(array), 9) == 0xE3069283
    assert crc32c_at(address_of(array), 0) == 0


def test_multipliers_are_those_of_the_paper() -> None:
    """Powers of x modulo Castagnoli; the pair of 128 bits is in Linux' crc32c-pcl-intel-asm."""
    assert power_mod(32) == 0x1EDC6F41
    assert fold_pair(128) == (0xF20C0DFE, 0x14CD00BD6)


@pytest.mark.parametrize("features", [None, "+sse4.2,+popcnt"])
def test_each_way_that_numba_compiles(features: str | None) -> None:
    """The processor's own features, and those that an image is built for."""
    environment = dict(os.environ) | (
        {} if features is None else {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": features}
    )
    code = """
import google_crc32c
from keylane.kernel.crc import crc32c_at, has_wide_multiplication
from keylane.kernel.library import address_of, as_bytes_array
data = bytes(index * 7 % 251 for index in range(9_999))
assert crc32c_at(address_of(as_bytes_array(data)), 9_999) == google_crc32c.value(data)
print(has_wide_multiplication())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert features is None or done.stdout == "False\n"
