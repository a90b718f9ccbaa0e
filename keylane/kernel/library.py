"""The kernels that `split` calls, loaded from object files, compiled before where they are missing.

In:    addresses, integers and arrays.  Out: what the kernels answer with.
Source: llvmlite, "Execution engine" (add_object_file); ctypes (calls let go of the GIL).

Under NUMBA_DISABLE_JIT=1 the names are the kernels themselves, as plain Python over checked memory.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from keylane.kernel.signatures import NEVER_CALLED, PARTS, SIGNATURES, Signature, kernel_folder

JIT: Final = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
"""False: plain Python, slow but checked."""
_NO_BYTES: Final = ctypes.c_char * 0

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
crc32c_of = _named("crc32c_of")
scan_batches = _named("scan_batches")
joined_bytes = _named("joined_bytes")
join_batches = _named("join_batches")
walk_batches = _named("walk_batches")
plan_lanes = _named("plan_lanes")
write_lanes = _named("write_lanes")

if JIT:

    def address_of(array: Any) -> int:
        """Return where the array's bytes are; valid only while the array lives."""
        if array.flags.writeable:
            return _writable_address(array)
        return int(array.__array_interface__["data"][0])

else:
    from keylane.kernel.memory_checked import address_of as address_of  # noqa: PLC0414
