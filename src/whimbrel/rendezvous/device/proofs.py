"""Proofs: what a device answers when its controller asks it for a group (Huang, 4.1.3).

Rule: it proves only groups that it has named itself; about another group it sends an answer that proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from whimbrel.rendezvous.events import Address, GroupKey
from whimbrel.rendezvous.messages import Ask, Proof
from whimbrel.rendezvous.tokens import DeviceKeys
from whimbrel.rendezvous.wire import SIGNATURE_BYTES

__all__ = ["prove"]


def prove(
    asked: Ask,
    named: Collection[GroupKey],
    keys: DeviceKeys | None,
    tokens: Mapping[GroupKey, bytes],
    *,
    address: Address,
    controller: Address | None,
) -> Proof | None:
    """Return the answer to *asked*; ``None``: stay silent, as a device without keys names no group."""
    if keys is None or controller is None:
        return None
    answer, token = bytes(SIGNATURE_BYTES), None
    if asked.group in named:
        token = tokens.get(asked.group) if asked.wants_token else None
        answer = keys.answer(asked.challenge, group=asked.group, address=address, controller=controller)
    return Proof(group=asked.group, challenge=asked.challenge, device_key=keys.public, answer=answer, token=token)
