"""Subscriptions of a log: when each was in force, where its devices were then, and matchers made of both."""

from __future__ import annotations

__all__: list[str] = []
