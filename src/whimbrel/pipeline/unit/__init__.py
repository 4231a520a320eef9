"""The unit of work: turn a span of one node's log into rows of tables, for the batch run and for the stream."""

from __future__ import annotations

__all__: list[str] = []
