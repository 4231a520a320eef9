"""The stream: keep the tables up to date while the log grows."""

from __future__ import annotations

__all__: list[str] = []
