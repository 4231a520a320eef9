"""One file a table: its transform from DataFrames, and what a stream shares with it."""

from __future__ import annotations

__all__: list[str] = []
