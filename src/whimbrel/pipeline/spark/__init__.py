"""Spark: the session, the log as a DataFrame, and the progress of running jobs."""

from __future__ import annotations

__all__: list[str] = []
