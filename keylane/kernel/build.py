"""Compile kernels to object files: `python -m keylane.kernel.build FOLDER NAME...`.

It makes `NAME.o` of each, for the processor that numba is set to.
Source: numba 0.68, `CFunc` and `carray`; llvmlite, "Target machine" (emit_object).

Compiled in another process, so that a proxy neither imports numba nor keeps what a compiler
needs: a hundred megabytes and half a second.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from llvmlite import binding
from numba import carray, types
from numba.core import codegen, cpu, dispatcher, event
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock

from keylane.kernel import crc, fields, join, records, rewrite, spans
from keylane.kernel.library import NEVER_CALLED, SIGNATURES, Signature

MODULES: Final = {
    "crc": crc, "fields": fields, "join": join, "records": records, "rewrite": rewrite,
    "spans": spans,
}  # fmt: skip
LIBRARY_SYMBOLS: Final = re.compile(r"mem(cpy|move|set)|_?Py\w+")
"""Symbols of the C library and the interpreter that compiled code may need."""


def run_nothing_here() -> None:
    """Have numba leave out what only the compiling process would use: a third of its time.

    For every helper it makes a function for Python and one for C, has LLVM write machine code for
    both, and times each call of LLVM once per function that is being compiled at that moment. What
    goes into the object file is optimised as before. Not for a process that calls kernels itself.
    """

    def without_wrappers(_compiler: Any, flags: Any) -> Any:
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return flags

    patched: Any = dispatcher
    # Of all but the entries, whose own class says otherwise.
    patched._FunctionCompiler._customize_flags = without_wrappers  # noqa: SLF001 -- no setting
    patched = cpu.CPUContext
    # numba wants a function of C, another one for each.
    patched.get_executable = lambda *_: object().__sizeof__
    patched = codegen.JITCodeLibrary
    patched._finalize_specific = lambda _: None  # noqa: SLF001
    patched = event
    patched.install_timer = lambda *_: contextlib.nullcontext()


@global_compiler_lock
def compile_kernel(name: str) -> bytes:
    """Return the object file that has the kernel under its own name, C calling convention."""
    signature = SIGNATURES[name]
    kernel = getattr(MODULES[signature.module], name)
    result = types.int64 if signature.answers else types.void
    types_of = (tuple(_argument_types(signature)), result)
    entry: Any = CFunc(_wrap(kernel, signature), types_of, locals={}, options={})
    # Not `compile`, which has machine code written for this process.
    compiled = entry._compile_uncached()  # noqa: SLF001 -- no public way to an object file
    library = compiled.library
    library.finalize()
    module = binding.parse_assembly(library.get_llvm_str())
    for function in module.functions:
        if function.name == compiled.fndesc.llvm_cfunc_wrapper_name:
            function.name = f"keylane_{name}"
    unknown = [
        function.name
        for function in module.functions
        if function.is_declaration
        and not function.name.startswith("llvm.")
        and not LIBRARY_SYMBOLS.fullmatch(function.name)
        and function.name not in NEVER_CALLED
    ]
    assert not unknown, f"{name} needs {unknown}"
    return bytes(library.codegen._tm.emit_object(module))  # noqa: SLF001


def _argument_types(signature: Signature) -> list[Any]:
    kinds: list[Any] = []
    for argument in signature.arguments:
        kinds += [types.int64] if argument is None else [types.voidptr, types.int64]
    return kinds


def _wrap(kernel: Any, signature: Signature) -> Any:
    """Make the function that turns addresses and counts into arrays for the kernel."""
    names: dict[str, Any] = {"kernel": kernel, "carray": carray}
    parameters, values = [], []
    for index, argument in enumerate(signature.arguments):
        if argument is None:
            parameters.append(f"a{index}")
            values.append(f"a{index}")
            continue
        names[f"t{index}"] = getattr(np, argument.dtype)
        shape = {(True, False): f"(n{index}, {argument.columns})",
                 (False, True): f"({argument.rows}, n{index})"}.get(
            (bool(argument.columns), bool(argument.rows)), f"(n{index},)"
        )  # fmt: skip
        parameters += [f"a{index}", f"n{index}"]
        values.append(f"carray(a{index}, {shape}, t{index})")
    source = f"def wrapped({', '.join(parameters)}):\n    return kernel({', '.join(values)})\n"
    exec(compile(source, "<kernel>", "exec"), names)  # noqa: S102 -- of our own table alone
    return names["wrapped"]


def main(arguments: list[str]) -> int:
    """Compile the kernels that are named into the folder; each appears whole or not at all."""
    folder, names = Path(arguments[0]), arguments[1:]
    gc.disable()  # a fifth of the time, for a process that lives for seconds
    run_nothing_here()
    for name in names:
        data = compile_kernel(name)
        part = folder / f"{name}.{os.getpid()}"
        part.write_bytes(data)
        part.replace(folder / f"{name}.o")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
