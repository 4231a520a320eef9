"""The words of an entry, shared by who writes them (``plans``, ``packing``) and who reads them (``kernels``).

An entry is a header ``handle | leaves << 32 | flags << 48``, then two words a leaf:
``op | column << 8 | jump if true << 32 | jump if false << 48``, and the constant (an integer, or a double's bits).
"""

from __future__ import annotations

__all__ = ["ACCEPT", "CLOSURE", "MULTI", "REJECT"]

ACCEPT, REJECT = 0xFFFF, 0xFFFE
"""Jumps that end an entry; every other one is the number of a leaf."""
MULTI, CLOSURE = 1, 2
"""Flags: its filter has several entries; the closures have the last word."""
