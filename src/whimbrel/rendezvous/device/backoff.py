"""Back-off: how long a device waits after a page that the controller did not answer."""

from __future__ import annotations

import hashlib

from whimbrel.rendezvous.events import Address

__all__ = ["backoff_us"]

_FIRST_US, _MAX_DOUBLINGS = 1_280_000, 6


def backoff_us(address: Address, failures: int) -> int:
    """Return how long to wait after so many *failures*: addresses break the tie, not randomness."""
    span = _FIRST_US << min(failures, _MAX_DOUBLINGS)
    drawn = hashlib.sha256(f"{address} {failures}".encode()).digest()
    return int.from_bytes(drawn[:8], "big") % span
