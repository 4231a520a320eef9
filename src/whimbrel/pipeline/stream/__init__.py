"""The stream: tables that follow a log which goes on."""

from __future__ import annotations

__all__: list[str] = []
