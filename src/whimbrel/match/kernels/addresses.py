# mypy: disable-error-code="attr-defined, call-arg, no-any-return"
# (numba infers the types inside a kernel; mypy cannot know them)
"""The table of addresses: an array with the address and length of every other array that the kernel uses.

Rule: the kernel takes one table of addresses. Passing fifty arrays cost 20 µs per call, more than a match, because
numba counts references to each array. Only ``write_addresses`` fills the table, and it checks all types.
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
"""Position in the table of each array's address, by the array's name; its length is in the position after it."""


def write_addresses(table: Any, arrays: dict[str, Any]) -> None:
    """Write the addresses and lengths of *arrays* into *table*; the caller must keep the arrays alive."""
    for name, array in arrays.items():
        if array.dtype != DTYPES[name] or not array.flags.c_contiguous:
            raise TypeError(f"{name} is {array.dtype}, the kernel wants contiguous {DTYPES[name].__name__}")
        table[AT[name]] = array.__array_interface__["data"][0]
        table[AT[name] + 1] = array.size


def new_table() -> Any:
    """Return an empty table of addresses."""
    return np.zeros(2 * len(FIELDS), np.int64)


@njit(cache=True)
def int64s(table: Any, at: int) -> Any:
    """Return an array of 64-bit integers.

    Its address is at index *at* of the table of addresses, followed by its length.
    """
    return carray(pointer(table[at]), table[at + 1], np.int64)


@njit(cache=True)
def int32s(table: Any, at: int) -> Any:
    """Return an array of 32-bit integers.

    Its address is at index *at* of the table of addresses, followed by its length.
    """
    return carray(pointer(table[at]), table[at + 1], np.int32)


@njit(cache=True)
def uint8s(table: Any, at: int) -> Any:
    """Return an array of bytes; its address is at index *at* of the table of addresses, followed by its length."""
    return carray(pointer(table[at]), table[at + 1], np.uint8)


@njit(cache=True)
def float64s(table: Any, at: int) -> Any:
    """Return an array of doubles; its address is at index *at* of the table of addresses, followed by its length."""
    return carray(pointer(table[at]), table[at + 1], np.float64)
