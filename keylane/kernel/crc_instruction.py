"""The CRC32 instruction of x86 (SSE 4.2) as numba intrinsics.

In:    a running CRC and a word or byte.  Out: the next running CRC, both uint64.
Not callable from Python.
Source: LLVM `llvm.x86.sse42.crc32.64.64` and `llvm.x86.sse42.crc32.32.8`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


@intrinsic
def crc_u64(typing_context: Any, crc: Any, word: Any) -> Any:
    """Take eight bytes into a running CRC."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(_I64, [_I64, _I64])
        name = "llvm.x86.sse42.crc32.64.64"
        function = builder.module.declare_intrinsic(name, fnty=function_type)
        return builder.call(function, arguments)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def crc_u8(typing_context: Any, crc: Any, byte: Any) -> Any:
    """Take one byte into a running CRC."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(_I32, [_I32, _I8])
        name = "llvm.x86.sse42.crc32.32.8"
        function = builder.module.declare_intrinsic(name, fnty=function_type)
        low, byte_value = builder.trunc(arguments[0], _I32), builder.trunc(arguments[1], _I8)
        return builder.zext(builder.call(function, [low, byte_value]), _I64)

    return types.uint64(types.uint64, types.int64), generate
