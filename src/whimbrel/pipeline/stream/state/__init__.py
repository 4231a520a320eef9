"""The state of a stream: what is stored between two batches, and the record that names it."""

from __future__ import annotations

__all__: list[str] = []
