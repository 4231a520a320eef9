"""Binary layout of an *entry*: one clause of a filter as 64-bit words, which the kernel runs like jump code.

An entry begins with a header ``handle | leaves << 32 | flags << 48``. Each *leaf*, a test of one column (attribute),
has two words: first ``op | column << 8 | jump if true << 32 | jump if false << 48``, then the constant (an integer, or
the bits of a double). ``index.plans`` and ``index.packing`` write entries, ``matching`` reads them.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ACCEPT", "CLOSURE", "MULTI", "REJECT", "Op"]

ACCEPT, REJECT = 0xFFFF, 0xFFFE
"""Jump targets that end an entry as accepted or rejected; every other target is the number of a leaf to test next."""
MULTI, CLOSURE = 1, 2
"""Flags of an entry: MULTI, its filter has several entries; CLOSURE, an accepted entry is doubtful."""


class Op(IntEnum):
    """Kinds of tests that a leaf of an entry can make; the numbers are those in the packed index."""

    INT_EQ = 0
    INT_NE = 1
    INT_LT = 2
    INT_LE = 3
    INT_GT = 4
    INT_GE = 5
    REAL_EQ = 6
    REAL_NE = 7
    REAL_LT = 8
    REAL_LE = 9
    REAL_GT = 10
    REAL_GE = 11
    STRING_EQ = 12
    STRING_NE = 13
    PATTERN = 14
    NOT_PATTERN = 15
    PRESENT = 16
    TYPE_IS = 17
    TYPE_IS_NOT = 18
    NAN = 19
    NOT_NAN = 20
    MAYBE = 21
