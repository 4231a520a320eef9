"""Clustering: the order of the rows in a data file, so that a reader of one session or device reads little of it.

A batch writes rows in the order of the log, in which all sessions are mixed: the range of sessions of each page is that
of the whole file. Ordered by session, a page has a few sessions, and readers skip the others by its range.
Rule: the order says nothing; a file has the same rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["CLUSTERED_BY", "as_clustered"]

CLUSTERED_BY = {
    "matches": ("session", "published_at", "notification_seq"),
    "deliveries": ("session", "decided_at", "notification_seq"),
    "link_quality": ("device", "reported_at"),
    "contacts": ("device_low", "began_at"),
}
"""Columns by which the rows of a file are ordered, per table; files of the other tables are small."""


def as_clustered(rows: Any, table: str) -> Any:  # pyarrow.Tables
    """Return the *rows* of a file of *table* in the order in which the file shall have them."""
    names = CLUSTERED_BY.get(table)
    if names is None or rows.num_rows < 2:
        return rows
    # The last key of lexsort counts most.
    order = np.lexsort([_ranks(rows.column(name)) for name in reversed(names)])
    return rows.take(pa.array(order))


def _ranks(column: Any) -> Any:
    """Return a number per row in the order of the column's values; a null comes last."""
    if pa.types.is_string(column.type):
        coded = column.combine_chunks().dictionary_encode()
        if isinstance(coded, pa.ChunkedArray):
            coded = coded.chunk(0) if coded.num_chunks else pa.array([], pa.string()).dictionary_encode()
        count = len(coded.dictionary)
        ranks = np.empty(count + 1, np.int64)
        ranks[pc.sort_indices(coded.dictionary).to_numpy()] = np.arange(count)
        ranks[count] = count
        return ranks[pc.fill_null(coded.indices, count).to_numpy()]
    return column.cast(pa.int64()).to_numpy()
