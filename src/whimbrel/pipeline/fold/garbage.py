"""Garbage collection: pause Python's cycle collector while a piece (a chunk of records) of the log is folded.

Folding a piece creates hundreds of thousands of values that live until its rows are written. They form no cycles, but
the collector would visit them and the node's state repeatedly, which costs a fifth of the core time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["pause_collection", "paused_collection"]

T = TypeVar("T")


def pause_collection(pieces: Iterable[T]) -> Iterator[T]:
    """Yield *pieces*; pause the collector while each piece is made, but not between two of them."""
    iterator = iter(pieces)
    while True:
        with paused_collection():
            try:
                piece = next(iterator)
            except StopIteration:
                return
        yield piece
        del piece  # frees memory before the next piece is made


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the collector during the ``with`` block, for example while a state is read."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
