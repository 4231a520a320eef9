"""Words: how the kernels of proximity read and write memory, by address.

An array is seven words to numba, passed by value and counted: handing a dozen of them to a helper at every candidate
made a question take 110 µs instead of 6, and to the kernel itself 60 µs a call. So kernels are given addresses, and
helpers numbers alone.

Rule: an address is that of an array which its owner keeps alive and knows the size of; nothing here checks a bound.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["address", "prefetch", "real", "set_real", "set_word", "word"]

_get_or_insert: Any = cgutils.get_or_insert_function
_intrinsic: Any = intrinsic  # mypy would have a kernel hand over the typing context, too


def address(array: Any) -> int:
    """Return where *array* begins; it must lie in one piece, in words of eight bytes."""
    assert array.flags.c_contiguous
    assert array.itemsize == 8  # int64 and float64
    return int(array.ctypes.data)


def _place(builder: Any, base: Any, index: Any, kind: Any) -> Any:
    return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])


@_intrinsic
def word(context: Any, base: Any, index: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Return the integer number *index* from *base* on."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index = arguments
        return builder.load(_place(builder, base, index, ir.IntType(64)))

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def set_word(context: Any, base: Any, index: Any, value: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Write the integer number *index* from *base* on."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index, value = arguments
        builder.store(value, _place(builder, base, index, ir.IntType(64)))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@_intrinsic
def real(context: Any, base: Any, index: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Return the float number *index* from *base* on."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index = arguments
        return builder.load(_place(builder, base, index, ir.DoubleType()))

    return types.float64(types.int64, types.int64), generate


@_intrinsic
def set_real(context: Any, base: Any, index: Any, value: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Write the float number *index* from *base* on."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index, value = arguments
        builder.store(value, _place(builder, base, index, ir.DoubleType()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float64), generate


@_intrinsic
def prefetch(context: Any, base: Any, index: Any) -> Any:  # noqa: ARG001 # numba's protocol
    """Ask the memory for the word number *index* from *base* on, and go on without waiting for it."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        base, index = arguments
        flag, line = ir.IntType(32), _place(builder, base, index, ir.IntType(64))
        form = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        function = _get_or_insert(builder.module, form, "llvm.prefetch")
        builder.call(function, [builder.bitcast(line, cgutils.voidptr_t), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate
