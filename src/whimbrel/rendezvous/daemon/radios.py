"""Radios of daemons: from a transport's name to a radio that is open."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from whimbrel.errors import MissingDependencyError, WhimbrelError

if TYPE_CHECKING:
    from whimbrel.rendezvous.radio.bumble.radio import BumbleRadio

__all__ = ["open_radio"]


async def open_radio(
    transport: str,
    *,
    name: str,
    device_class: int,
    now: Callable[[], int],
    trouble: Callable[[WhimbrelError], None],
    unpaired: str = "accept",
    link_keys: Path | None = None,
) -> BumbleRadio:
    """Open the adapter at *transport*, and return its radio."""
    try:
        from whimbrel.rendezvous.radio.bumble.adapter import Adapter, Limits
        from whimbrel.rendezvous.radio.bumble.pairing import KeyFile, Unpaired
        from whimbrel.rendezvous.radio.bumble.radio import BumbleRadio
    except ImportError:
        remedy = "install it with: pip install 'whimbrel[radio]'"
        raise MissingDependencyError("a Bluetooth radio", "Bumble", remedy) from None
    logging.getLogger("bumble").setLevel(logging.CRITICAL)  # what matters to us is an error of ours
    adapter = await Adapter.open(transport, device_name=name, device_class=device_class, limits=Limits())
    try:
        keys = None if link_keys is None else KeyFile(adapter.address, link_keys)
        return BumbleRadio(adapter, now=now, trouble=trouble, unpaired=Unpaired(unpaired), keys=keys)
    except BaseException:
        await adapter.close()
        raise
