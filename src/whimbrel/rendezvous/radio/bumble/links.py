"""Links: the state of each connection of a radio, from its beginning to its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bumble.core import BaseBumbleError

from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.bumble.framing import Deframer, frame
from whimbrel.rendezvous.wire import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from bumble.device import Connection
    from bumble.l2cap import ClassicChannel

__all__ = ["MAX_EARLY", "MAX_EARLY_BYTES", "Link"]

MAX_EARLY, MAX_EARLY_BYTES = 256, 2 * MAX_MESSAGE_BYTES
"""Most messages of a device, and most bytes of them, that are stored before its connection is reported."""


@dataclass(slots=True, eq=False)
class Link:
    """One connection."""

    address: Address
    connection: Connection
    is_caller: bool
    """Whether we paged."""
    channel: ClassicChannel | None = None
    """Channel of our messages; ``None``: the other side has none, or has not opened it yet."""
    deframer: Deframer = field(default_factory=Deframer)
    early: list[bytes] = field(default_factory=list)
    """Messages that arrived before the connection was reported."""
    is_told: bool = False
    is_closing: bool = False
    has_channel: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, data: bytes) -> None:
        """Send a message, if the other side has a channel."""
        if self.channel is None:
            return
        with suppress(BaseBumbleError):  # the channel has just been closed
            for piece in frame(data, piece_bytes=self.channel.peer_mtu):
                self.channel.write(piece)

    async def close(self, limit_s: float) -> None:
        """Close the channel, then the connection; the other side confirms the first after it has read everything."""
        with suppress(BaseBumbleError, TimeoutError, asyncio.CancelledError):
            if self.channel is not None:
                async with asyncio.timeout(limit_s):
                    await self.channel.disconnect()
        with suppress(BaseBumbleError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(limit_s):
                await self.connection.disconnect()
