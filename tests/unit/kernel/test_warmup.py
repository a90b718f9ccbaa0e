"""Warm-up: after it no fetch waits for a compiler, and no stale code is loaded."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keylane.kernel import library
from keylane.kernel.library import JIT, PARTS, SIGNATURES, kernel_folder
from keylane.kernel.pick import index_records
from keylane.kernel.split import split_block
from keylane.kernel.warmup import warm_up
from keylane.keyrange.lane import LaneLayout
from tests.reference.batches import CODEC_FORMS
from tests.reference.random_batches import random_block

compiled = pytest.mark.skipif(not JIT, reason="nothing is compiled")


def test_every_kernel_is_compiled_by_one_of_the_processes() -> None:
    """None is left out, none is compiled twice."""
    assert sorted(name for part in PARTS for name in part) == sorted(SIGNATURES)


@compiled
def test_no_block_compiles_anything_after_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every codec, buffer kind, bound and lane count finds its kernels ready."""
    warm_up()
    monkeypatch.setattr(library, "_compile", None)
    rng = random.Random(3)

    for lanes in (1, 2, 16, 1_000):
        for form in sorted(CODEC_FORMS):
            wire = b"".join(random_block(rng, 6, [form, "none"]))
            for buffer in (wire, bytearray(wire), memoryview(wire)):
                for room in (0, np.int64(500), 1 << 40):
                    block = split_block(
                        buffer,
                        LaneLayout(1, lanes).key_split(0),
                        plain_bytes_max=int(room),
                        batch_bytes_max=1 << 40,
                    )
                    assert block is not None
                held = index_records(buffer, plain_bytes_max=1 << 40, batch_bytes_max=1 << 40)
                assert held is not None and held.pick(range(len(held.offsets))[::2]) is not None


@compiled
def test_a_process_that_finds_its_kernels_never_imports_numba() -> None:
    """The compiler and its memory stay away; what is compiled is found again."""
    warm_up()
    code = (
        "import sys; from keylane.kernel import library; library._compile = None\n"
        "from keylane.kernel.warmup import warm_up; warm_up()\n"
        "print('numba' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("False\n", "")


@compiled
def test_a_folder_that_cannot_be_written_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are compiled for this process alone."""
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    folders: list[Path] = []

    def compile_nothing(folder: Path) -> dict[str, bytes]:
        folders.append(folder)
        return {}

    monkeypatch.setattr(library, "_compile", compile_nothing)

    assert library._find_objects() == {}
    assert folders and not folders[0].exists()


@compiled
def test_the_compilers_message_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error has more than the failure itself."""
    monkeypatch.setattr(library, "PARTS", (("no_such_kernel",),))

    with pytest.raises(RuntimeError, match="no_such_kernel"):
        library._compile(tmp_path)


def test_the_folder_follows_sources_processor_and_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """NUMBA_CACHE_DIR is the base when it is set; other sources or processors look elsewhere."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/somewhere")
    before = kernel_folder("here")

    assert before.parent == Path("/somewhere")
    assert before == kernel_folder("here") != kernel_folder("there")

    copies = tmp_path / "keylane" / "kernel"
    copies.mkdir(parents=True)
    for path in Path(library.__file__).parent.glob("*.py"):
        (copies / path.name).write_bytes(path.read_bytes())
    for name in ("wire/batch.py", "keyrange/hash.py"):
        (copies.parent / name).parent.mkdir(exist_ok=True)
        (copies.parent / name).write_bytes(
            (Path(library.__file__).parent.parent / name).read_bytes()
        )
    monkeypatch.setattr(library, "__file__", str(copies / "library.py"))
    assert kernel_folder("here") == before
    (copies / "hashes.py").write_text("changed")
    assert kernel_folder("here") != before


def test_the_processor_is_the_one_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is compiled for any; a machine of one's own for itself."""
    own = library.processor()
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "")

    assert library.processor() != own
    assert library.processor().endswith(" generic ")
    assert os.environ["NUMBA_CPU_NAME"] == "generic"
