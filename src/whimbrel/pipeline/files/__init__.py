"""What is on the disk: the log as it is read and judged, and the Delta tables as they are written."""

from __future__ import annotations

__all__: list[str] = []
