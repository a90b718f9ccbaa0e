"""pipeline/murmur2.py: columns of keys are hashed as single keys are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.pipeline.murmur2 import hash_keys
from tests.reference.murmur2 import VECTORS, to_positive

keys = st.none() | st.binary(max_size=9) | st.binary(max_size=80)


@given(column=st.lists(keys, max_size=20), skipped=st.integers(0, 3))
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_each_key_has_its_hash(kind: pa.DataType, column: list[bytes | None], skipped: int) -> None:
    """Null has none, an empty key has one; a slice begins inside of its buffers."""
    array = pa.array([*VECTORS, *column], kind).slice(skipped)

    found = hash_keys(array)

    assert found.type == pa.int64()
    assert found.to_pylist() == [
        None if key is None else to_positive(key) for key in array.to_pylist()
    ]


def test_a_column_without_keys_has_no_hashes() -> None:
    """Spark may give a worker an empty array, and one of nulls."""
    assert hash_keys(pa.array([], pa.binary())).to_pylist() == []
    assert hash_keys(pa.array([None, None], pa.binary())).to_pylist() == [None, None]
