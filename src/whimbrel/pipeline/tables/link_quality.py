"""``link_quality``: received / sent of a device, report to report: SUBLIM's automatic variable NetworkConnection (6.2).

Rule: a node's reports decide, in the order of its numbers; what a device did at another node is that one's affair.
Rule: where nothing was sent, or the report does not say, the value stays as it was; before the first it is not known.
The first report of a device has no interval behind it and makes no row, but what it says is remembered.
Rule: a device that was silent for ``SILENCE_US`` begins anew, so that nothing need be remembered of one that is gone.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from whimbrel.model.tables import TABLES, TIME_TYPE
from whimbrel.shape.variables import SILENCE_US, LinkState, next_link

__all__ = ["SILENCE_US", "Links"]


class Links:
    """What is known of the links of one node's devices; it goes on from report to report."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.state: dict[str, LinkState] = {}
        """By device, how its link was at its last report; those that were silent longest come first."""
        self.changed: set[str] = set()
        """The links whose state changed since its keeper last cleared this."""

    def take(self, reports: Any) -> Any:
        """Take in the node's next ``reports``, an Arrow table or batch sorted by seq; return rows as a batch."""
        times = reports.column("reported_at").cast(TIME_TYPE).cast(pa.int64())
        others = (reports.column(name).to_pylist() for name in ("seq", "device", "received", "sent"))
        rows: list[tuple[Any, ...]] = []
        for seq, device, received, sent, at in zip(*others, times.to_pylist(), strict=True):
            before, now = next_link(self.state.get(device), at, received, sent)
            if before is not None:
                rows.append((self.node, seq, device, before.at, at, received, sent, now.connection))
            self.state.pop(device, None)
            self.state[device] = now
            self.changed.add(device)
        schema = TABLES["link_quality"].schema
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def forget(self, now: int) -> None:
        """Forget the devices that have been silent too long by *now*."""
        while self.state:
            device, (at, _) = next(iter(self.state.items()))
            if now - at < SILENCE_US:
                return
            del self.state[device]
            self.changed.add(device)

    def restored(self) -> None:
        """Put what was restored, in any order, in the order of time."""
        self.state = dict(sorted(self.state.items(), key=lambda item: (item[1].at, item[0])))
