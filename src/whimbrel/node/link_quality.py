"""The links of devices: the quality of each link at the device's last report.

This is the fold behind the table ``link_quality``. The pipeline makes rows from it. A broker stores it in its
checkpoints, so that a pipeline that starts at a checkpoint can continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import cbor2

from whimbrel.hold.touched_rows import Key
from whimbrel.model.device import DeviceState
from whimbrel.node.memory import LINK_BYTES, MemoryCount
from whimbrel.shape.variables import MAX_LINKS, SILENCE_US, LinkState, next_link

__all__ = ["LinkQuality"]


class LinkQuality:
    """The links of at most *most* devices of a node, ordered by last report."""

    def __init__(self, touch: Callable[[Key], None], memory: MemoryCount, *, most: int = MAX_LINKS) -> None:
        self._touch, self._memory, self._most = touch, memory, most
        self.state: dict[str, LinkState] = {}

    def on_report(self, report: DeviceState) -> None:
        """Update the link of the reporting device, and remove devices without a report for ``SILENCE_US``."""
        self.step(report.device, report.reported_at, report.received, report.sent)

    def step(self, device: str, at: int, received: int | None, sent: int | None) -> tuple[LinkState | None, LinkState]:
        """Apply a report as ``on_report`` does; return the link before it, None if unknown or too old, and after it."""
        links, count = self.state, len(self.state)
        found = next_link(links.pop(device, None), at, received, sent)
        links[device] = found[1]
        self._touch(("link", device))
        while True:
            oldest = next(iter(links))
            if len(links) <= self._most and at - links[oldest].at < SILENCE_US:
                break
            del links[oldest]
            self._touch(("link", oldest))
        self._memory.counted += (len(links) - count) * LINK_BYTES
        return found

    def forget(self, now: int) -> None:
        """Remove the devices that have sent no report for ``SILENCE_US`` at the time *now*."""
        links = self.state
        while links:
            oldest = next(iter(links))
            if now - links[oldest].at < SILENCE_US:
                return
            del links[oldest]
            self._touch(("link", oldest))
            self._memory.counted -= LINK_BYTES

    # -- rows --------------------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> frozenset[str]:
        """The kind of its rows."""
        return frozenset({"link"})

    def keys(self) -> Iterator[Key]:
        """Yield the keys of all rows."""
        yield from (("link", device) for device in self.state)

    def row(self, key: Key) -> bytes | None:
        """Return the row of a device; None if nothing is known of it."""
        found = self.state.get(str(key[1]))
        return None if found is None else cbor2.dumps(list(found))

    def restore(self, rows: Mapping[Key, bytes]) -> None:
        """Restore the links from *rows*."""
        found = {str(device): LinkState(*cbor2.loads(row)) for (_, device), row in rows.items()}
        self.state = dict(sorted(found.items(), key=lambda each: (each[1].at, each[0])))
        self._memory.counted += len(self.state) * LINK_BYTES
