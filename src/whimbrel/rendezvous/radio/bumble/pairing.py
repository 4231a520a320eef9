"""Pairing: which devices may connect, and the file of their link keys (Huang, 4.2: devices are paired already).

Rule: ``ACCEPT`` connects to every device and asks for no key. ``REFUSE`` connects to paired devices only, and only over
connections that their link key encrypts: an address can be forged, a key cannot. ``PAIR`` pairs with a device that is
not paired yet, without asking a user ("just works"): an attacker present at that moment can be the man in the middle.
Rule: link keys are secrets. The file is readable by its owner only, and one that others can read is refused.
"""

from __future__ import annotations

import asyncio
import os
import stat
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bumble.core import BaseBumbleError
from bumble.keys import JsonKeyStore

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.bumble.errors import RadioError

if TYPE_CHECKING:
    from bumble.device import Connection

__all__ = ["KeyFile", "Unpaired", "UnpairedError", "secure"]


class Unpaired(Enum):
    """Treatment of devices that are not paired with this one."""

    ACCEPT = "accept"
    REFUSE = "refuse"
    PAIR = "pair"


class UnpairedError(RadioError):
    """A device is not paired, or does not have the key that it had. Reaction: pair it, or accept unpaired devices."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason

    def __str__(self) -> str:
        return f"{self.address} was refused: {self.reason}; pair it first (unpaired = pair), or accept unpaired devices"


class KeyFile(JsonKeyStore):
    """Bumble's file of link keys, readable by its owner only."""

    def __init__(self, own: Address, path: Path) -> None:
        super().__init__(namespace=own, filename=str(path))
        self._check(path)

    @staticmethod
    def _check(path: Path) -> None:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            return
        if mode & 0o077:
            found = Phrase(f"a file that others can read or write (mode {mode:o})")
            raise InvalidValueError(f"link keys in {path}", found, f"mode 600 (chmod 600 {path})")

    async def load(self) -> Any:  # noqa: ANN401 # Bumble's own type is open
        """Read the file; one that is broken is refused, not overwritten."""
        try:
            return await super().load()
        except (ValueError, TypeError) as error:
            raise InvalidValueError(
                f"link keys in {self.filename}", Phrase(f"no JSON of keys ({error})"), "a file that Bumble has written"
            ) from None

    async def save(self, db: dict[str, dict[str, dict[str, Any]]]) -> None:
        """Write the file, for its owner only from its first byte."""
        beside = self.filename.with_name(self.filename.name + ".tmp")
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        beside.chmod(0o600)
        await super().save(db)

    async def has(self, address: Address) -> bool:
        """Return whether the device at *address* is paired."""
        return any(name[: len(address)] == address and keys.link_key for name, keys in await self.get_all())


async def secure(connection: Connection, *, is_caller: bool, limit_s: float) -> None:
    """Encrypt *connection* with the link key, on request of the caller; raise ``UnpairedError`` if that fails."""
    address = Address(str(connection.peer_address)[:17])
    try:
        async with asyncio.timeout(limit_s):
            if is_caller:
                await connection.authenticate()
                await connection.encrypt()
                return
            encrypted = asyncio.Event()
            connection.on("connection_encryption_change", encrypted.set)
            if not connection.is_encrypted:
                await encrypted.wait()
    except TimeoutError:
        raise UnpairedError(address, f"the connection was not encrypted within {limit_s:g} s") from None
    except (BaseBumbleError, asyncio.CancelledError) as error:
        raise UnpairedError(address, str(error) or "the connection ended") from None
