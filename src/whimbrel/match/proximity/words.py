"""Words: the kernels of proximity read and write memory by address, in words of 64 bits.

To numba an array is seven words, passed by value and reference-counted. Passing a dozen arrays to a helper for every
candidate made a search take 110 µs instead of 6, and passing them to the kernel cost 60 µs per call. So kernels and
their helpers get addresses as plain integers.
Rule: nothing here checks a bound. An address belongs to an array whose owner keeps it alive and knows its size.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["address", "prefetch", "real", "set_real", "set_word", "word"]

_get_or_insert: Any = cgutils.get_or_insert_function
_intrinsic: Any = intrinsic  # mypy would require the typing context as an argument, too


def address(array: Any) -> int:
    """Return the address of *array*, which must be contiguous and have words of eight bytes."""
    assert array.flags.c_contiguous
    assert array.itemsize == 8  # int64 and float64
    return int(array.ctypes.data)


def _place(builder: Any, base: Any, index: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])


@_intrinsic
def word(context: Any, base: Any, index: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Return the integer at *index* of the array at address *base*."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index = arguments
        return builder.load(_place(builder, base, index, ir.IntType(64)))

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def set_word(context: Any, base: Any, index: Any, value: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Write the integer at *index* of the array at address *base*."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index, value = arguments
        builder.store(value, _place(builder, base, index, ir.IntType(64)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_intrinsic
def real(context: Any, base: Any, index: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Return the float at *index* of the array at address *base*."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index = arguments
        return builder.load(_place(builder, base, index, ir.DoubleType()))

    return types.float64(types.int64, types.int64), generate


@_intrinsic
def set_real(context: Any, base: Any, index: Any, value: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Write the float at *index* of the array at address *base*."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index, value = arguments
        builder.store(value, _place(builder, base, index, ir.DoubleType()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float64), generate


@_intrinsic
def prefetch(context: Any, base: Any, index: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Start loading the word at *index* of the array at address *base*, without waiting for it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index = arguments
        flag, line = ir.IntType(32), _place(builder, base, index, ir.IntType(64))
        form = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        function = _get_or_insert(builder.module, form, "llvm.prefetch")
        builder.call(function, [builder.bitcast(line, cgutils.voidptr_t), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate
