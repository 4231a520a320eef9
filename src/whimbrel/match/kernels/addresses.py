# mypy: disable-error-code="attr-defined, call-arg, no-any-return"
# (inside a kernel a number is numba's, whatever mypy takes it for)
"""The table of addresses: one array that tells the kernel where all others lie, and how long they are.

Rule: the kernel is given one table of addresses. Handing it fifty arrays cost 20 µs a call, more than a match; it also
counted their references. ``write_addresses`` is the only place that fills the table, and checks every type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from whimbrel.match.kernels.arrays import DTYPES, FIELDS
from whimbrel.match.kernels.compiled import njit
from whimbrel.match.kernels.intrinsics import pointer

__all__ = ["AT", "float64s", "int32s", "int64s", "new_table", "uint8s", "write_addresses"]

AT = {name: 2 * number for number, name in enumerate(FIELDS)}
"""Where in the table the address of each array stands; its length is behind it."""


def write_addresses(table: Any, arrays: dict[str, Any]) -> None:
    """Write where *arrays* lie into the *table* the kernel reads; the caller keeps them alive."""
    for name, array in arrays.items():
        if array.dtype != DTYPES[name] or not array.flags.c_contiguous:
            raise TypeError(f"{name} is {array.dtype}, the kernel wants contiguous {DTYPES[name].__name__}")
        table[AT[name]] = array.__array_interface__["data"][0]
        table[AT[name] + 1] = array.size


def new_table() -> Any:
    """Return a table of addresses, still empty."""
    return np.zeros(2 * len(FIELDS), np.int64)


@njit(cache=True)
def int64s(table: Any, at: int) -> Any:
    """Return the array of 64-bit integers whose address stands at *at*."""
    return carray(pointer(table[at]), table[at + 1], np.int64)


@njit(cache=True)
def int32s(table: Any, at: int) -> Any:
    """Return the array of 32-bit integers whose address stands at *at*."""
    return carray(pointer(table[at]), table[at + 1], np.int32)


@njit(cache=True)
def uint8s(table: Any, at: int) -> Any:
    """Return the array of bytes whose address stands at *at*."""
    return carray(pointer(table[at]), table[at + 1], np.uint8)


@njit(cache=True)
def float64s(table: Any, at: int) -> Any:
    """Return the array of doubles whose address stands at *at*."""
    return carray(pointer(table[at]), table[at + 1], np.float64)
