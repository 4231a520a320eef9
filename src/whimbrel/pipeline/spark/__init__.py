"""Spark: the session, the log as a DataFrame, and what a running job tells."""

from __future__ import annotations

__all__: list[str] = []
