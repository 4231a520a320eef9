"""Publications of one connection that wait for memory or disk space."""

from __future__ import annotations

from whimbrel.mqtt.packets import Publish

__all__ = ["StalledPublications"]


class StalledPublications:
    """Publications of one connection in order, and the reason why they wait (``publish.stalled``)."""

    __slots__ = ("packets", "reason", "size_bytes")

    def __init__(self, reason: str) -> None:
        self.packets: list[Publish] = []
        self.reason, self.size_bytes = reason, 0
