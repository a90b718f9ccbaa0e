"""The kernels that `split` calls, loaded from object files, compiled before where they are missing.

Their folder is named by a digest of all kernel sources, the libraries' versions and the processor,
since none of them sees when another changes.
Source: llvmlite, "Execution engine" (add_object_file); ctypes (calls let go of the GIL).

Under NUMBA_DISABLE_JIT=1 the names are the kernels themselves, as plain Python over checked memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from keylane.kernel import status as s

JIT: Final = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
"""False: plain Python, slow but checked."""
_NO_BYTES: Final = ctypes.c_char * 0


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
    """One kernel: the module that has it, its arguments (None: an int64), and its result."""

    module: str
    arguments: tuple[Table | None, ...]
    answers: bool
    """True: it returns an int64; False: nothing."""


_BATCHES: Final = Table("int64", columns=s.BATCH_COLUMNS)
_ENTRIES: Final = Table("int64", columns=s.ENTRY_COLUMNS)
_LANES: Final = Table("int64", columns=s.LANE_COLUMNS)
_PAIRS: Final = Table("int64", columns=2)
_META: Final = Table("int64", rows=s.META_ROWS)
_INTEGERS: Final = Table("int64")
_HELD_BATCHES: Final = Table("int64", rows=s.HELD_BATCH_ROWS)
_HELD_RECORDS: Final = Table("int64", rows=s.HELD_RECORD_ROWS)
_SPANS: Final = Table("int32", rows=s.SPAN_ROWS)
_FIELD_LONGS: Final = Table("int64", rows=s.FIELD_LONG_ROWS)
_FIELD_PLACES: Final = Table("int32", rows=s.FIELD_PLACE_ROWS)

_FOUR: Final = (None, None, None, None)

SIGNATURES: Final = {
    "count_batches": Signature("spans", (None, None), answers=True),
    "crc32c_at": Signature("crc", (None, None), answers=True),
    "scan_batches": Signature("spans", (*_FOUR, _BATCHES, _INTEGERS), answers=False),
    "joined_bytes": Signature("join", (_BATCHES,), answers=True),
    "join_batches": Signature("join", (_BATCHES, _BATCHES, None, None), answers=True),
    "walk_batches": Signature(
        "spans",
        (_BATCHES, Table("uint64"), Table("int32"), Table("int16"), Table("uint64"),
         Table("int32"), Table("int16"), _ENTRIES, _INTEGERS, _PAIRS, _PAIRS, _INTEGERS, _INTEGERS),
        answers=False,
    ),
    "plan_lanes": Signature("rewrite", (_BATCHES, _ENTRIES, _LANES), answers=False),
    "write_lanes": Signature(
        "rewrite",
        (_BATCHES, Table("int32"), Table("int16"), _ENTRIES, _LANES, None, _INTEGERS, _META),
        answers=False,
    ),
    "hold_batches": Signature(
        "records", (_BATCHES, None, _HELD_BATCHES, _HELD_RECORDS, _SPANS, _INTEGERS), answers=False
    ),
    "pick_records": Signature(
        "records",
        (None, _HELD_BATCHES, _SPANS, _INTEGERS, None, None),
        answers=True,
    ),
    "survey_batches": Signature("fields", (None, None, _INTEGERS), answers=True),
    "list_fields": Signature(
        "fields",
        (_BATCHES, _INTEGERS, None, _PAIRS, _INTEGERS, _FIELD_LONGS, _FIELD_PLACES, _INTEGERS,
         _INTEGERS),
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
    ("walk_batches", "hold_batches"),
    (
        "write_lanes", "join_batches", "pick_records", "joined_bytes", "scan_batches", "crc32c_at",
        "count_batches", "plan_lanes", "list_fields",
        "survey_batches",
    ),
)  # fmt: skip
"""Two processes compile them at the same time; this deal gives each about as much."""

_lock = threading.Lock()
_functions: dict[str, Callable[..., Any]] = {}
_alive: list[Any] = []
"""The engine that owns the machine code: it must live as long as the process."""


def load() -> None:
    """Load every kernel, compiling what is missing; does nothing when done before.

    Raises: RuntimeError, with what the compiler said.
    """
    with _lock:
        if _functions:
            return
        if JIT:
            _functions.update(_load_objects(_find_objects()))
        else:
            _functions.update(_plain_kernels())


def processor() -> str:
    """Return what kernels are compiled for: the name and features of a processor.

    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are respected, so that an image can be compiled for a
    generic processor and run on any.
    """
    from llvmlite import binding  # noqa: PLC0415 -- not where kernels are plain Python

    name, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if name is None and features is None:
        name, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return f"{binding.get_process_triple()} {name} {features}"


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


def are_compiled() -> bool:
    """Return whether `load` has nothing to compile."""
    if not JIT or _functions:
        return True
    folder = kernel_folder(processor())
    return all((folder / f"{name}.o").is_file() for name in SIGNATURES)


def _plain_kernels() -> dict[str, Callable[..., Any]]:
    from importlib import import_module  # noqa: PLC0415

    return {
        name: getattr(import_module(f"keylane.kernel.{signature.module}"), name)
        for name, signature in SIGNATURES.items()
    }


def _find_objects() -> dict[str, bytes]:
    """Read the object files; compile first where one is missing."""
    folder = kernel_folder(processor())
    if not all((folder / f"{name}.o").is_file() for name in SIGNATURES):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writable = os.access(folder, os.W_OK)
        except OSError:
            writable = False
        if not writable:  # compile for this process alone
            with tempfile.TemporaryDirectory(prefix="keylane-kernels-") as passing:
                return _compile(Path(passing))
        return _compile(folder)
    return _read(folder)


def _compile(folder: Path) -> dict[str, bytes]:
    children = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "keylane.kernel.build", str(folder), *names],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        for names in PARTS
    ]  # fmt: skip
    for child in children:
        _, errors = child.communicate()
        if child.returncode != 0:
            text = errors.decode(errors="replace")[-2000:]
            raise RuntimeError(f"kernels could not be compiled: {text}")
    return _read(folder)


def _read(folder: Path) -> dict[str, bytes]:
    return {name: (folder / f"{name}.o").read_bytes() for name in SIGNATURES}


def _load_objects(objects: dict[str, bytes]) -> dict[str, Callable[..., Any]]:
    from llvmlite import binding  # noqa: PLC0415

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    stop = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    for symbol in NEVER_CALLED:
        binding.add_symbol(symbol, stop)
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    for data in objects.values():
        engine.add_object_file(binding.ObjectFileRef.from_data(data))
    engine.finalize_object()
    _alive.append(engine)
    return {
        name: _bind(engine.get_function_address(f"keylane_{name}"), signature)
        for name, signature in SIGNATURES.items()
    }


def _bind(address: int, signature: Signature) -> Callable[..., Any]:
    """Return the machine code as a function of arrays and integers."""
    types: list[Any] = []
    for argument in signature.arguments:
        types += [ctypes.c_int64] if argument is None else [ctypes.c_void_p, ctypes.c_int64]
    result = ctypes.c_int64 if signature.answers else None
    function = ctypes.CFUNCTYPE(result, *types)(address)
    axes = [None if argument is None else argument.axis for argument in signature.arguments]
    if not any(axis is not None for axis in axes):
        return function

    def call(*arguments: Any) -> Any:
        values: list[int] = []
        for axis, argument in zip(axes, arguments, strict=True):
            if axis is None:
                values.append(argument)
            else:
                values += (_writable_address(argument), argument.shape[axis])
        return function(*values)

    return call


def _writable_address(array: Any) -> int:
    """Return the address of a contiguous, writable array: in an eighth of `array.ctypes.data`."""
    return ctypes.addressof(_NO_BYTES.from_buffer(array))


def _named(name: str) -> Callable[..., Any]:
    def kernel(*arguments: Any) -> Any:
        if not _functions:
            load()
        return _functions[name](*arguments)

    kernel.__name__ = name
    return kernel


count_batches = _named("count_batches")
crc32c_at = _named("crc32c_at")
scan_batches = _named("scan_batches")
joined_bytes = _named("joined_bytes")
join_batches = _named("join_batches")
walk_batches = _named("walk_batches")
plan_lanes = _named("plan_lanes")
write_lanes = _named("write_lanes")
hold_batches = _named("hold_batches")
pick_records = _named("pick_records")
survey_batches = _named("survey_batches")
list_fields = _named("list_fields")


def as_bytes_array(buffer: Any) -> NDArray[np.uint8]:
    """View any contiguous buffer as bytes without a copy; keep the view while kernels run."""
    return np.frombuffer(buffer, np.uint8)


def python_arithmetic() -> AbstractContextManager[object]:
    """Silence NumPy without compilation: it would warn that the hash wraps, as it must."""
    return nullcontext() if JIT else np.errstate(over="ignore")


if JIT:

    def address_of(array: Any) -> int:
        """Return where the array's bytes are; valid only while the array lives."""
        if array.flags.writeable:
            return _writable_address(array)
        return int(array.__array_interface__["data"][0])

else:
    from keylane.kernel.memory_checked import address_of as address_of  # noqa: PLC0414
