"""``link_quality``: received / sent of a device between reports: SUBLIM's automatic variable NetworkConnection (6.2).

Rule: the value is computed per node, from the device's reports to that node in the order of their seqs.
Rule: after a report without counts, or an interval in which nothing was sent, the value stays; at first it is unknown.
The first report of a device makes no row, but its counts are stored.
Rule: after ``SILENCE_US`` without a report a device starts again, so that the state of a lost device can be removed.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.node.link_quality import LinkQuality

__all__ = ["link_rows"]


def link_rows(node: str, links: LinkQuality, reports: Any) -> Any:
    """Update *links*, the quality of devices' links, by a node's *reports*; return the new rows of ``link_quality``.

    *reports* is an Arrow table or batch in the order of seq; the rows are an Arrow batch.
    """
    times = reports.column("reported_at").cast(TIME_TYPE).cast(pa.int64())
    others = (reports.column(name).to_pylist() for name in ("seq", "device", "received", "sent"))
    rows: list[tuple[Any, ...]] = []
    for seq, device, received, sent, at in zip(*others, times.to_pylist(), strict=True):
        before, now = links.step(device, at, received, sent)
        if before is not None:
            rows.append((node, seq, device, before.at, at, received, sent, now.connection))
    schema = TABLES["link_quality"].schema
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
