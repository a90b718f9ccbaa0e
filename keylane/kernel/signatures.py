"""Signatures of the kernels that `split` calls: names, tables, integers.

In:    nothing.  Out: `SIGNATURES`, and the folder that compiled kernels are kept in.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from keylane.kernel import status as s


@dataclass(frozen=True, slots=True)
class Table:
    """An array argument; compiled code is given its address, and the count of its open axis."""

    dtype: str
    columns: int = 0
    """(n, columns) where it is not 0."""
    rows: int = 0
    """(rows, n) where it is not 0; (n,) where neither is."""

    @property
    def axis(self) -> int:
        """Return which axis is open."""
        return 1 if self.rows else 0


@dataclass(frozen=True, slots=True)
class Signature:
    """One kernel: the module that has it, its arguments (None: an int64), whether it answers."""

    module: str
    arguments: tuple[Table | None, ...]
    answers: bool
    """With an int64; nothing else."""


_BATCHES: Final = Table("int64", columns=s.BATCH_COLUMNS)
_ENTRIES: Final = Table("int64", columns=s.ENTRY_COLUMNS)
_LANES: Final = Table("int64", columns=s.LANE_COLUMNS)
_PAIRS: Final = Table("int64", columns=2)
_META: Final = Table("int64", rows=s.META_ROWS)
_INTEGERS: Final = Table("int64")

_FOUR: Final = (None, None, None, None)

SIGNATURES: Final = {
    "count_batches": Signature("spans", (None, None), answers=True),
    "crc32c_of": Signature("crc", (None, None), answers=True),
    "scan_batches": Signature("spans", (*_FOUR, _BATCHES, _INTEGERS), answers=False),
    "joined_bytes": Signature("join", (_BATCHES,), answers=True),
    "join_batches": Signature("join", (_BATCHES, _BATCHES, None, None), answers=True),
    "walk_batches": Signature(
        "spans",
        (_BATCHES, Table("uint64"), Table("int32"), Table("int16"), Table("int32"),
         Table("int16"), _ENTRIES, _INTEGERS, _PAIRS, _PAIRS, _INTEGERS, _INTEGERS),
        answers=False,
    ),
    "plan_lanes": Signature("rewrite", (_BATCHES, _ENTRIES, _LANES), answers=False),
    "write_lanes": Signature(
        "rewrite",
        (_BATCHES, Table("int32"), Table("int16"), _ENTRIES, _LANES, None, _INTEGERS, _META),
        answers=False,
    ),
}  # fmt: skip
NEVER_CALLED: Final = (
    "NRT_MemInfo_call_dtor", "NRT_Free", "numba_gil_ensure", "numba_gil_release",
    "numba_unpickle", "numba_runtime_build_excinfo_struct", "numba_do_raise",
)  # fmt: skip
"""Functions of numba's runtime that object files name and kernels never come to: they own no
array and raise nothing. There is no numba to answer for them, so that a call would be the end."""
PARTS: Final = (
    ("walk_batches", "count_batches", "crc32c_of", "plan_lanes"),
    ("write_lanes", "join_batches", "joined_bytes", "scan_batches"),
)
"""Two processes compile them at the same time; this deal gives each about as much."""


def kernel_folder(processor: str) -> Path:
    """Return where the kernels of these sources, compiled for this processor, are.

    Below NUMBA_CACHE_DIR where that is set, else beside the sources.
    """
    here = Path(__file__).parent
    constants = [here.parent / "wire" / "batch.py", here.parent / "keyrange" / "hash.py"]
    digest = hashlib.sha256(f"{version('numba')} {version('llvmlite')} {processor}".encode())
    for path in [*sorted(here.glob("*.py")), *constants]:
        digest.update(path.read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR")
    return (Path(base) if base else here / "__pycache__") / f"kernels-{digest.hexdigest()[:16]}"
