"""The batch run: make the tables of a whole log, or their rows of one interval of time."""

from __future__ import annotations

__all__: list[str] = []
