"""The batch run: tables of a whole log, or of an interval of it."""

from __future__ import annotations

__all__: list[str] = []
