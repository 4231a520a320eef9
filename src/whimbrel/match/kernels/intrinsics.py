# mypy: disable-error-code="no-untyped-call"
# (numba's code generation has no types)
"""Instructions that numba does not offer: a pointer from an address, a prefetch, the lowest set bit."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["lowest_bit", "pointer", "prefetch"]


@intrinsic
def pointer(context: Any, address: Any) -> Any:  # noqa: ARG001  # numba's protocol
    """Turn an address into a pointer."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def prefetch(context: Any, array: Any, at: Any) -> Any:  # noqa: ARG001  # numba's protocol
    """Start loading the cache line of ``array[at]``, without waiting for it."""

    def generate(generating: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, number = signature.args
        data = generating.make_array(kind)(generating, builder, arguments[0]).data
        place = builder.gep(data, [generating.cast(builder, arguments[1], number, types.int64)])
        flag = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        prefetch = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch")
        builder.call(prefetch, [builder.bitcast(place, cgutils.voidptr_t), flag(0), flag(3), flag(1)])
        return generating.get_dummy_value()

    return types.void(array, at), generate


@intrinsic
def lowest_bit(context: Any, word: Any) -> Any:  # noqa: ARG001  # numba's protocol
    """Return the index of the lowest set bit of *word*, which must not be zero."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate
