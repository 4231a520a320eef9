"""Links: what a radio knows of each connection, from its first moment to its last."""

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
"""Messages, and their bytes, that are kept of a device before its connection is told."""


@dataclass(slots=True, eq=False)
class Link:
    """One connection."""

    address: Address
    connection: Connection
    is_caller: bool
    """Whether we paged."""
    channel: ClassicChannel | None = None
    """Where our messages go; ``None``: the other side has none yet, or none at all."""
    deframer: Deframer = field(default_factory=Deframer)
    early: list[bytes] = field(default_factory=list)
    """Messages that came before the connection was told."""
    is_told: bool = False
    is_closing: bool = False
    has_channel: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, data: bytes) -> None:
        """Send a message; nothing happens if the other side cannot take one."""
        if self.channel is None:
            return
        with suppress(BaseBumbleError):  # the channel has just been closed
            for piece in frame(data, piece_bytes=self.channel.peer_mtu):
                self.channel.write(piece)

    async def close(self, limit_s: float) -> None:
        """Close the channel, which the other side answers after it has read everything, and then the connection."""
        with suppress(BaseBumbleError, TimeoutError, asyncio.CancelledError):
            if self.channel is not None:
                async with asyncio.timeout(limit_s):
                    await self.channel.disconnect()
        with suppress(BaseBumbleError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(limit_s):
                await self.connection.disconnect()
