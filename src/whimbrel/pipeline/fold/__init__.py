"""Events of a log through the hold core, and the versions of subscriptions that they meet."""

from __future__ import annotations

__all__: list[str] = []
