"""The content index as a backend of the filter language: verdicts true, false or undefined, as of other backends.

The index only finds filters that are true. So each filter is indexed twice, as it is and negated: it is false where its
negation is true, and undefined where neither is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whimbrel.language.ast import Not, Predicate
from whimbrel.language.printer import print_filter
from whimbrel.match.index.content import ContentIndex
from whimbrel.model.attributes import Attributes

__all__ = ["verdicts"]


def verdicts(cases: Sequence[tuple[Predicate, Attributes]]) -> Iterator[bool | None]:
    """Yield the verdict of each pair of a filter's tree and attributes: True, False or None (undefined).

    One index holds the filters of all pairs.
    """
    texts = (print_filter(tree) for case, _ in cases for tree in (case, Not(case)))
    index = ContentIndex.load(enumerate(texts))
    rows, handles = index.match_rows([attributes for _, attributes in cases])
    found = set(zip(rows.tolist(), handles.tolist(), strict=True))
    for row in range(len(cases)):
        yield True if (row, 2 * row) in found else False if (row, 2 * row + 1) in found else None
