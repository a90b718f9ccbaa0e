"""CRC32C by instructions of x86, as numba intrinsics: one word at a time, or folded by vectors.

Not callable from Python.
Source: LLVM `llvm.x86.sse42.crc32.64.64`, `llvm.x86.sse42.crc32.32.8`, `llvm.x86.pclmulqdq.512`;
V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel
2009), in its reflected form.

Folding takes 256 bytes at a time, where the processor multiplies whole vectors (`crc`). A
polynomial that is taken modulo another may be replaced by any with the same remainder. So the
128 bits at the front of a message are multiplied by x^d mod P and added d bits further on. Four
vectors of four such words run side by side; at the end they are folded into one word of 16 bytes,
whose CRC two instructions take. Unlike the CRC32 instruction (8 bytes a cycle at best) this is as
fast as memory that lies in the second-level cache.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

BLOCK_BYTES: Final = 256
"""Four vectors of 64 bytes."""
_POLYNOMIAL: Final = 0x11EDC6F41
"""Castagnoli, bits in their usual order."""
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_I64, 8)
_VECTOR_BITS: Final = 512
_LANE_BITS: Final = 128


@intrinsic
def crc_u64(typing_context: Any, crc: Any, word: Any) -> Any:
    """Take eight bytes into a running CRC."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.call(_crc_word(builder), arguments)

    return types.uint64(types.uint64, types.uint64), generate


def _crc_word(builder: Any) -> Any:
    function_type = ir.FunctionType(_I64, [_I64, _I64])
    return builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=function_type)


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


def power_mod(exponent: int) -> int:
    """Return x^exponent mod P, bits in their usual order."""
    value = 1
    for _ in range(exponent):
        value <<= 1
        if value >> 32:
            value ^= _POLYNOMIAL
    return value


def _multiplier(exponent: int) -> int:
    """x^exponent mod P with its bits reversed, moved by the bit that a reflected product lacks."""
    return int(f"{power_mod(exponent):032b}"[::-1], 2) << 1


def fold_pair(distance_bits: int) -> tuple[int, int]:
    """Return what the low and the high word of 16 bytes are multiplied by to move so far."""
    return _multiplier(distance_bits + 32), _multiplier(distance_bits - 32)


def _vector(words: list[int]) -> Any:
    return ir.Constant(_WORDS, [ir.Constant(_I64, word) for word in words])


class _Folder:
    """Writes the instructions of one fold after another."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        function_type = ir.FunctionType(_WORDS, [_WORDS, _WORDS, _I8])
        name = "llvm.x86.pclmulqdq.512"
        self.multiply = builder.module.declare_intrinsic(name, fnty=function_type)
        self.crc_word = _crc_word(builder)

    def load(self, address: Any, offset: int) -> Any:
        at = self.builder.add(address, ir.Constant(_I64, offset))
        return self.builder.load(self.builder.inttoptr(at, _WORDS.as_pointer()), align=1)

    def moved(self, vector: Any, multipliers: Any) -> Any:
        """Return the vector, moved by the distance that the multipliers stand for."""
        low = self.builder.call(self.multiply, [vector, multipliers, _I8(0x00)])
        high = self.builder.call(self.multiply, [vector, multipliers, _I8(0x11)])
        return self.builder.xor(low, high)

    def reduced(self, vectors: list[Any]) -> Any:
        """Fold the vectors into 16 bytes and return their CRC."""
        step = _vector(list(fold_pair(_VECTOR_BITS)) * 4)
        total = vectors[0]
        for vector in vectors[1:]:
            total = self.builder.xor(self.moved(total, step), vector)
        pairs = [word for lanes in (3, 2, 1) for word in fold_pair(lanes * _LANE_BITS)]
        moved = self.moved(total, _vector([*pairs, 0, 0]))
        crc: Any = ir.Constant(_I64, 0)
        for half in (0, 1):
            word = self.builder.extract_element(total, ir.Constant(_I32, 6 + half))
            for lane in range(3):
                index = ir.Constant(_I32, 2 * lane + half)
                word = self.builder.xor(word, self.builder.extract_element(moved, index))
            crc = self.builder.call(self.crc_word, [crc, word])
        return crc


@intrinsic
def fold_blocks(typing_context: Any, crc: Any, address: Any, blocks: Any) -> Any:
    """Take `blocks` times 256 bytes, at least one, into a running CRC."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        crc_value, start, block_count = arguments
        folder = _Folder(builder)
        first = [folder.load(start, 64 * index) for index in range(4)]
        running = builder.insert_element(_vector([0] * 8), crc_value, ir.Constant(_I32, 0))
        first[0] = builder.xor(first[0], running)
        before = builder.block
        head, body, done = (builder.append_basic_block(f"fold.{name}") for name in "abc")
        builder.branch(head)
        builder.position_at_end(head)
        left, at = builder.phi(_I64), builder.phi(_I64)
        vectors = [builder.phi(_WORDS) for _ in range(4)]
        one = ir.Constant(_I64, 1)
        builder.cbranch(builder.icmp_signed(">", left, one), body, done)
        builder.position_at_end(body)
        following = builder.add(at, ir.Constant(_I64, BLOCK_BYTES))
        step = _vector(list(fold_pair(8 * BLOCK_BYTES)) * 4)
        loads = [folder.load(following, 64 * index) for index in range(4)]
        folded = [
            builder.xor(folder.moved(vector, step), load)
            for vector, load in zip(vectors, loads, strict=True)
        ]
        fewer = builder.sub(left, one)
        builder.branch(head)
        for block, values in (
            (before, [block_count, start, *first]),
            (body, [fewer, following, *folded]),
        ):
            for phi, value in zip([left, at, *vectors], values, strict=True):
                phi.add_incoming(value, block)
        builder.position_at_end(done)
        return folder.reduced(vectors)

    return types.uint64(types.uint64, types.int64, types.int64), generate
