"""The parts of Delta tables: data files with the order of their rows and their statistics, and commits."""

from __future__ import annotations

__all__: list[str] = []
