"""The unit of work: a span of one node's log becomes rows of tables, for the batch run and for the stream."""

from __future__ import annotations

__all__: list[str] = []
