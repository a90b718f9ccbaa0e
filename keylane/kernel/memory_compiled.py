"""Loads, stores and copies at raw addresses, as LLVM instructions.

Not callable from Python: numba compiles them into the kernels.
Source: LLVM language reference (load, store, llvm.bswap, llvm.memcpy).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from keylane.kernel.jit import leaf

_VECTOR = ir.VectorType(ir.IntType(8), 32)


def _pointer(builder: Any, address: Any, element: Any) -> Any:
    return builder.inttoptr(address, element.as_pointer())


def _make_load(bits: int, *, swap: bool, signed: bool, result: Any) -> Any:
    def load(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _pointer(builder, arguments[0], ir.IntType(bits))
            value = builder.load(pointer, align=1)
            if swap:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return (builder.sext if signed else builder.zext)(value, ir.IntType(64))

        return result(types.int64), generate

    return intrinsic(load)


def _make_store(bits: int, *, swap: bool) -> Any:
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            stored = arguments[1]
            if bits < 64:
                stored = builder.trunc(stored, ir.IntType(bits))
            if swap:
                stored = builder.bswap(stored)
            builder.store(stored, _pointer(builder, arguments[0], ir.IntType(bits)), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return intrinsic(store)


load_u8 = _make_load(8, swap=False, signed=False, result=types.int64)
load_i32_be = _make_load(32, swap=True, signed=True, result=types.int64)
load_u32_be = _make_load(32, swap=True, signed=False, result=types.int64)
load_i64_be = _make_load(64, swap=True, signed=True, result=types.int64)
load_u32_le = _make_load(32, swap=False, signed=False, result=types.uint64)
load_u64_le = _make_load(64, swap=False, signed=False, result=types.uint64)
store_u8 = _make_store(8, swap=False)
store_i32_be = _make_store(32, swap=True)
store_i64_be = _make_store(64, swap=True)


@intrinsic
def copy_bytes(typing_context: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy `size` bytes from address `source` to address `target` (libc memcpy)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8)
        pointer = byte.as_pointer()
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, ir.IntType(64)])
        target_pointer = _pointer(builder, arguments[0], byte)
        source_pointer = _pointer(builder, arguments[1], byte)
        builder.call(memcpy, [target_pointer, source_pointer, arguments[2], ir.IntType(1)(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def _copy_32(typing_context: Any, target: Any, source: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(_pointer(builder, arguments[1], _VECTOR), align=1)
        builder.store(value, _pointer(builder, arguments[0], _VECTOR), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def prefetch_write(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address that is about to be written; any address may be."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch.p0i8", fnty=function_type)
        target = _pointer(builder, arguments[0], ir.IntType(8))
        builder.call(prefetch, [target, number(1), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@leaf
def copy_fast(target: int, source: int, size: int) -> None:
    """Copy by whole 32-byte words; reads and writes up to 32 bytes past the end.

    Beats the call of memcpy for records of a few hundred bytes. The caller knows that both
    overshoots stay inside its buffers.
    """
    end = source + size
    while source < end:
        _copy_32(target, source)
        target += 32
        source += 32
