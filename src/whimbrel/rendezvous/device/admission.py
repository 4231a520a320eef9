"""Admission of devices to the group that a device owns (Huang, 2.3): by a prompt, a list or a rule.

Rule: an admission is called only for a device whose token has been checked: address and key are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from whimbrel.rendezvous.events import Address

__all__ = ["Admission", "admit_everyone", "admit_listed", "ask_owner"]

Admission: TypeAlias = Callable[[Address, bytes], bool | None]
"""Function that decides whether the device with an address and a public key is admitted; ``None``: ask the owner."""


def ask_owner(_address: Address, _device_key: bytes) -> bool | None:
    """Leave each decision to the owner (``Device.admit``)."""
    return None


def admit_everyone(_address: Address, _device_key: bytes) -> bool | None:
    """Admit every device that asks."""
    return True


def admit_listed(device_keys: Collection[bytes]) -> Admission:
    """Return an admission of the devices with these public keys; no other is admitted.

    Keys and not addresses are listed: an address can be forged.
    """
    allowed = frozenset(device_keys)
    return lambda _address, device_key: device_key in allowed
