"""Pages: answers to requests that may list thousands of rows.

Rule: an answer has at most ``MAX_ROWS`` rows and about 64 KiB, and names the start of the next page.
Rule: rows count as work (``work_budget``) and are made over several turns of the event loop. None is made in the turn
that read the request, because one read of a socket may contain a thousand requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

__all__ = ["MAX_ROWS", "Row", "cost_of_rows", "page_of"]

MAX_ROWS = 1_000
_MAX_ANSWER_BYTES = 65_536
_ROWS_A_PIECE = 100
"""Rows that are made in one turn of the event loop; each takes 5 to 10 µs."""
_ROWS_A_UNIT = 8
"""Number of rows that cost one unit of work (``work_budget``)."""

_Item = TypeVar("_Item")
Row = Mapping[str, object]


def cost_of_rows(count: int) -> int:
    """Return the work of *count* rows, in the units of ``work_budget``."""
    return 1 + count // _ROWS_A_UNIT


def page_of(
    items: Sequence[_Item], most: int, row_of: Callable[[_Item], Row | None]
) -> Generator[None, None, tuple[list[Row], int]]:
    """Return at most *most* rows and the number of items that they were made from, beginning with the first.

    *row_of* makes the row of an item, or returns None for an item that was removed meanwhile. Yield before each step.
    """
    page: list[Row] = []
    size_bytes = 0
    for place, item in enumerate(islice(items, most)):
        if not place % _ROWS_A_PIECE:
            yield
        row = row_of(item)
        if row is None:
            continue
        size_bytes += len(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))
        if page and size_bytes > _MAX_ANSWER_BYTES:
            return page, place
        page.append(row)
    if not items:
        yield
    return page, min(most, len(items))
