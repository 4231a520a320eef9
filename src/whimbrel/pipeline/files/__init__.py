"""Files on disk: reading and validating the log, and writing Delta tables."""

from __future__ import annotations

__all__: list[str] = []
