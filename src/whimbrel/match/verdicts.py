"""The index as a backend: three-valued verdicts from an index that only finds filters that are true.

A filter is false where its negation is true, and undefined where neither is true; so each case is indexed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whimbrel.language.ast import Not, Predicate
from whimbrel.language.printer import print_filter
from whimbrel.match.index.content import ContentIndex
from whimbrel.model.attributes import Attributes

__all__ = ["verdicts"]


def verdicts(cases: Sequence[tuple[Predicate, Attributes]]) -> Iterator[bool | None]:
    """Yield the verdict of each tree on its attributes; all cases are in one index."""
    texts = (print_filter(tree) for case, _ in cases for tree in (case, Not(case)))
    index = ContentIndex.load(enumerate(texts))
    rows, handles = index.match_rows([attributes for _, attributes in cases])
    found = set(zip(rows.tolist(), handles.tolist(), strict=True))
    for row in range(len(cases)):
        yield True if (row, 2 * row) in found else False if (row, 2 * row + 1) in found else None
