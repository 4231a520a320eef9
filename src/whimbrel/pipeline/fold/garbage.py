"""Garbage: Python's collector looks for cycles among everything that was made; rows of tables have none.

While a piece is folded, hundreds of thousands of values are made that live until its rows are written, and the
collector would visit them, and the state of the node, again and again: a fifth of the core time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["uncollected"]

T = TypeVar("T")


def uncollected(pieces: Iterable[T]) -> Iterator[T]:
    """Yield *pieces*, each made without the collector; between two of them it may work."""
    iterator = iter(pieces)
    while True:
        with _paused():
            try:
                piece = next(iterator)
            except StopIteration:
                return
        yield piece
        del piece  # before the next one is made: it may be large


@contextmanager
def _paused() -> Iterator[None]:
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
