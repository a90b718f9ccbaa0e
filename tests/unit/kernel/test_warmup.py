"""Warm-up: after it no fetch waits for a compiler, and no stale code is loaded."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from keylane.kernel import crc, jit, memory, rewrite, spans
from keylane.kernel.jit import JIT
from keylane.kernel.split import split_block
from keylane.kernel.warmup import warm_up
from keylane.keyrange.lane import LaneLayout
from tests.reference.batches import CODEC_FORMS
from tests.reference.random_batches import random_block

ENTRIES: tuple[tuple[ModuleType, str], ...] = (
    (memory, "address_of"),
    (crc, "crc32c_of"),
    (spans, "count_batches"),
    (spans, "scan_batches"),
    (spans, "walk_batches"),
    (rewrite, "plan_lanes"),
    (rewrite, "write_lanes"),
)


def compiled() -> dict[str, int]:
    """How many forms of each entry kernel are compiled."""
    return {name: len(getattr(module, name).signatures) for module, name in ENTRIES}


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_no_block_compiles_anything_after_warm_up() -> None:
    """Every codec, buffer kind, bound and lane count finds its kernels ready."""
    warm_up()
    before = compiled()
    rng = random.Random(3)

    for lanes in (1, 2, 16, 1_000):
        for form in sorted(CODEC_FORMS):
            wire = b"".join(random_block(rng, 6, [form, "none"]))
            for buffer in (wire, bytearray(wire), memoryview(wire)):
                for room in (0, np.int64(500), 1 << 40):
                    split_block(
                        buffer,
                        LaneLayout(1, lanes).key_split(0).limits,
                        plain_bytes_max=int(room),
                        batch_bytes_max=1 << 40,
                    )

    assert compiled() == before
    assert min(before.values()) >= 1


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_compiled_code_lives_in_the_folder_of_its_sources() -> None:
    """The cache path carries the digest: changed sources look elsewhere."""
    path = Path(spans.walk_batches.stats.cache_path)  # type: ignore[attr-defined]

    assert any(part.startswith("kernels-") for part in path.parts)
    assert jit._cache_folder() == jit._CACHE_FOLDER


def test_the_cache_folder_follows_numbas_own_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """NUMBA_CACHE_DIR is the base when it is set."""
    monkeypatch.setattr("numba.config.CACHE_DIR", "/somewhere")

    assert jit._cache_folder().startswith("/somewhere/kernels-")
