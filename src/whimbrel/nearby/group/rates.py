"""Rate limits of new frames per sender (token buckets), so that a flood costs its neighbours a bounded amount.

Rule: each sender has a bucket that is refilled over one period; a frame beyond it is dropped and counted. The number of
buckets is bounded, too: the sender that was not heard for the longest time is evicted.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["SenderRates"]


class SenderRates:
    """Token buckets of the senders that one node hears."""

    def __init__(self, *, frames: int, period_us: int, max_senders: int) -> None:
        self._frames, self._period_us, self._max_senders = frames, period_us, max_senders
        self._buckets: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Level of each bucket, in frames times microseconds, and the time of that level."""

    def admits(self, sender: str, *, now: int) -> bool:
        """Take one frame from the bucket of *sender*; return whether it had one."""
        full = self._frames * self._period_us
        level, since = self._buckets.pop(sender, (full, now))
        level = min(full, level + (now - since) * self._frames)
        is_admitted = level >= self._period_us
        self._buckets[sender] = (level - self._period_us if is_admitted else level, now)
        if len(self._buckets) > self._max_senders:
            self._buckets.popitem(last=False)
        return is_admitted
