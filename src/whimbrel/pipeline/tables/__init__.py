"""Output tables, one file per table: its transform of DataFrames, and functions that the stream shares with it."""

from __future__ import annotations

__all__: list[str] = []
